"""What an AWS account lacks before jobs run on it, found without making anything.

Permissions are tried by dry runs: EC2 then answers DryRunOperation where the call would have been
allowed (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html, DryRun). What
cannot be tried is told as such: a permission to end VMs may depend on their tags, so only one of
our VMs would tell, and a right to look at a quota or a profile is not one that jobs need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from spothop.wire import ANY_ZONE, AgentConfig, Dialect, Pool, Verdict
from spothop_master.clouds.aws import errors, pricing, reading, requests
from spothop_master.clouds.aws.calls import Caller
from spothop_master.clouds.aws.config import AwsConfig, RegionConfig
from spothop_master.clouds.base import OWNER_TAG, AuthFailed, Check, CloudError, LaunchSpec
from spothop_master.clouds.clock import CloudClock, check

ALLOWED = "DryRunOperation"
READS = (
    "describe_instances",
    "describe_instance_type_offerings",
    "describe_spot_price_history",
    "describe_spot_instance_requests",
    "describe_subnets",
    "describe_images",
    "describe_volumes",
    "describe_addresses",
    "describe_network_interfaces",
)
"""That the driver needs."""
QUOTAS: Mapping[str, str] = {
    "L-34B43A08": "spot VMs without a GPU (A, C, D, H, I, M, R, T, Z)",
    "L-3819A6DF": "spot VMs of G and VT types",
    "L-7212CCBC": "spot VMs of P2, P3 and P4 types",
    "L-C4BD4855": "spot VMs of P5 types",
}
"""In vCPUs, by Service Quotas' codes of EC2."""
TRIED = "m5.large"
"""The VM type of the dry run."""
_S3_HOST = re.compile(r"(?:(?P<bucket>[^.]+)\.)?s3(?:\.[a-z0-9-]+)?\.amazonaws\.com")
_GLOBAL = "us-east-1"
"""IAM is one for all regions, and answers here."""


@dataclass(frozen=True)
class Doctor:
    """`image` resolves what the configuration says of one: (region, name) -> its id, and raises
    CloudError."""

    config: AwsConfig
    calls: Caller
    image: Callable[[str, str], requests.Image]
    now: Callable[[], datetime]

    def checks(self, storage_url: str) -> Iterator[Check]:
        """Stops at credentials that nobody takes. Raises no CloudError."""
        first, asked_at, clock = next(iter(self.config.regions)), self.now(), CloudClock()
        try:
            who = self.calls.call("sts", first, "get_caller_identity")
        except CloudError as error:
            late = error.code in errors.OUT_OF_TIME
            yield _failed("credentials", str(error), _CLOCK if late else _CREDENTIALS)
            return
        clock.heard(reading.date(who), asked_at=asked_at, now=self.now())
        yield _ok("credentials", f"{who['Arn']}, account {who['Account']}")
        yield check(clock, "AWS")
        yield self._profile()
        yield self._prices(first)
        for region in self.config.regions:
            yield from self._region(region)
        yield from self._bucket(storage_url)

    # --- one region -----------------------------------------------------------------------------

    def _region(self, region: str) -> Iterator[Check]:
        yield self._reads(region)
        zones = self._zones(region, self.config.regions[region])
        yield zones
        images = [*self._images(region)]
        yield from images
        if zones.verdict is Verdict.OK and images[0].verdict is Verdict.OK:
            yield self._launch(region)
        else:
            yield _unknown(f"{region}: launch", "not tried, because of the above")
        yield from self._quotas(region)

    def _reads(self, region: str) -> Check:
        subject = f"{region}: look at EC2"
        denied = []
        for operation in READS:
            error = self._dry(region, operation)
            if isinstance(error, AuthFailed):
                denied.append(f"ec2:{_action(operation)}")
            elif error is not None:
                return _failed(subject, str(error), "try again; is the region's name right?")
        if denied:
            return _failed(subject, f"denied: {', '.join(denied)}", _POLICY)
        return _ok(subject, f"{len(READS)} calls are allowed")

    def _dry(self, region: str, operation: str, **params: Any) -> CloudError | None:
        """Why it would not have been allowed."""
        try:
            self.calls.call("ec2", region, operation, DryRun=True, **params)
        except CloudError as error:
            return None if error.code == ALLOWED else error
        return None

    def _zones(self, region: str, config: RegionConfig) -> Check:
        subject = f"{region}: subnets"
        default = [{"Name": "default-for-az", "Values": ["true"]}]
        asked: dict[str, Any] = (
            {"SubnetIds": sorted(config.subnets.values())}
            if config.subnets
            else {"Filters": default}
        )
        try:
            pages = self.calls.pages("ec2", region, "describe_subnets", **asked)
            found = sorted(reading.zones_with_subnet(pages))
        except CloudError as error:
            return _failed(subject, str(error), "correct `subnets` of this region")
        if not found:
            hint = f"aws ec2 create-default-vpc --region {region}, or name `subnets`"
            return _failed(subject, "no default VPC with subnets", hint)
        if strange := sorted(config.subnets.keys() - set(found)):
            hint = "correct `subnets` of this region: zone -> subnet"
            return _failed(subject, f"no subnet of `subnets` is in {', '.join(strange)}", hint)
        whose = "named ones" if config.subnets else "the default VPC's"
        return _ok(subject, f"{whose}, in {', '.join(found)}")

    def _images(self, region: str) -> Iterator[Check]:
        for gpu in (False, True):
            subject = f"{region}: {'GPU image' if gpu else 'image'}"
            named = self.config.image_for(region, gpu=gpu, arch="x86_64")
            try:
                yield _ok(subject, f"{self.image(region, named).id} ({named})")
            except CloudError as error:
                key = "gpu_image" if gpu else "image"
                hint = _POLICY if isinstance(error, AuthFailed) else f"name another `{key}`"
                yield _failed(subject, f"{named}: {error}", hint)

    def _launch(self, region: str) -> Check:
        """What a launch sends, with tags and the profile: each needs a permission of its own."""
        subject = f"{region}: launch"
        image = self.image(region, self.config.image_for(region, gpu=False, arch="x86_64"))
        request = _request(self.config, region, image)
        error = self._dry(region, "run_instances", **request)
        if error is None:
            return _ok(subject, f"a spot {TRIED} would have been launched")
        hint = _POLICY if isinstance(error, AuthFailed) else "the words above are EC2's"
        return _failed(subject, str(error), hint)

    def _quotas(self, region: str) -> Iterator[Check]:
        for code, what in QUOTAS.items():
            subject = f"{region}: quota"
            asked = {"ServiceCode": "ec2", "QuotaCode": code}
            try:
                answer = self.calls.call("service-quotas", region, "get_service_quota", **asked)
            except CloudError as error:
                yield _unknown(subject, f"{what}: {error}", "allow servicequotas:GetServiceQuota")
                continue
            vcpus = float(answer["Quota"]["Value"])
            hint = (
                "aws service-quotas request-service-quota-increase --service-code ec2 "
                f"--quota-code {code} --desired-value N --region {region}"
            )
            told = f"{vcpus:g} vCPUs for {what}"
            none = f"{told}: none of them starts until AWS has granted some"
            yield _ok(subject, told) if vcpus > 0 else _unknown(subject, none, hint)

    # --- the account ----------------------------------------------------------------------------

    def _prices(self, region: str) -> Check:
        subject, asked = "prices on demand", pricing.question(region)
        try:
            self.calls.call("pricing", pricing.SERVED_IN, "get_products", **asked, MaxResults=1)
        except CloudError as error:
            told = f"those of the catalogue: {error}"
            return _unknown(subject, told, "allow pricing:GetProducts")
        return _ok(subject, "those of AWS's Price List")

    def _profile(self) -> Check:
        subject, profile = "instance profile", self.config.instance_profile
        if not profile:
            hint = "name an `instance_profile` whose role may use the bucket"
            return _unknown(subject, "VMs have no role, so jobs must bring their own keys", hint)
        name = profile.rpartition("/")[2]
        try:
            answer = self.calls.call(
                "iam", _GLOBAL, "get_instance_profile", InstanceProfileName=name
            )
        except AuthFailed as error:
            return _unknown(subject, f"{name}: {error}", "allow iam:GetInstanceProfile")
        except CloudError as error:
            hint = "make it, or correct `instance_profile`; deploy/aws has a template"
            return _failed(subject, str(error), hint)
        roles = [role["RoleName"] for role in answer["InstanceProfile"]["Roles"]]
        if not roles:
            return _failed(subject, f"{name} has no role", "add the VMs' role to it")
        return _ok(subject, f"{name}, with the role {', '.join(roles)}")

    def _bucket(self, storage_url: str) -> Iterator[Check]:
        """Of the default storage, with the credentials that we have."""
        bucket = bucket_of(storage_url)
        if bucket is None:
            hint = "set SPOTHOP_MASTER_STORAGE_URL=s3://..., or checkpoint.storage in each job"
            yield _unknown("bucket", f"the default storage is {storage_url or 'not set'}", hint)
            return
        first = next(iter(self.config.regions))
        try:
            self.calls.call("s3", first, "list_objects_v2", Bucket=bucket, MaxKeys=1)
            where = self.calls.call("s3", first, "get_bucket_location", Bucket=bucket)
        except CloudError as error:
            yield _failed("bucket", f"{bucket}: {error}", "is its name right, and ours the access?")
            return
        region = where.get("LocationConstraint") or _GLOBAL  # which S3 does not name
        if region not in self.config.regions:
            hint = "traffic between regions costs money; use a bucket where the VMs are"
            yield _unknown("bucket", f"{bucket} is in {region}, where no VM of ours is", hint)
        else:
            yield _ok("bucket", f"{bucket} in {region}")
        yield self._unfinished(bucket, region)

    def _unfinished(self, bucket: str, region: str) -> Check:
        """Parts of uploads that nobody finished cost money for ever without a rule."""
        subject = "bucket: unfinished uploads"
        try:
            answer = self.calls.call(
                "s3", region, "get_bucket_lifecycle_configuration", Bucket=bucket
            )
            rules: Sequence[Mapping[str, Any]] = answer.get("Rules", [])
        except AuthFailed as error:
            return _unknown(subject, str(error), "allow s3:GetLifecycleConfiguration")
        except CloudError:  # NoSuchLifecycleConfiguration
            rules = []
        days = [
            rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
            for rule in rules
            if rule.get("Status") == "Enabled" and "AbortIncompleteMultipartUpload" in rule
        ]
        if days:
            return _ok(subject, f"a rule ends them after {min(days)} days")
        hint = "add a life-cycle rule with AbortIncompleteMultipartUpload"
        return _unknown(subject, "no rule ends them; outputs of killed VMs may leave some", hint)


def bucket_of(storage_url: str) -> str | None:
    """The bucket of a URL that the VMs' client takes for one of S3 (obstore's `parse_url`), such as
    `spothop bootstrap` writes; None for any other."""
    url = urlsplit(storage_url)
    if url.scheme in ("s3", "s3a"):
        return url.netloc
    if url.scheme != "https" or (host := _S3_HOST.fullmatch(url.hostname or "")) is None:
        return None
    return host["bucket"] or url.path.strip("/").partition("/")[0] or None


def _request(config: AwsConfig, region: str, image: requests.Image) -> dict[str, Any]:
    """As the driver would make it, for a VM that nothing runs on."""
    place = config.regions[region]
    zone, subnet = next(iter(place.subnets.items()), (ANY_ZONE, None))
    nobody = AgentConfig(
        master="http://doctor", token="-", vm="doctor", dialect=Dialect.AWS, directory="/"
    )
    spec = LaunchSpec(
        pool=Pool(cloud="aws", region=region, zone=zone, vm=TRIED),
        user_data=nobody,
        script="#!/bin/sh\n",
        tags={OWNER_TAG: "doctor", "spothop-vm": "doctor"},
    )
    where = requests.Place(zone=zone, subnet=subnet, security_groups=tuple(place.security_groups))
    return requests.run_instances(
        spec,
        f"doctor-{region}",
        image=image,
        place=where,
        profile=config.instance_profile,
        disk_gb=config.disk_gb,
    )


_CREDENTIALS = (
    "run the master on a VM with a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY in its environment"
)
_CLOCK = "is this machine's clock right? AWS refuses signatures that are 5 minutes off"
_POLICY = "compare the master's policy with deploy/aws"


def _action(operation: str) -> str:
    """`DescribeInstances`, as policies name it."""
    return "".join(word.capitalize() for word in operation.split("_"))


def _ok(subject: str, fact: str) -> Check:
    return Check(subject=subject, verdict=Verdict.OK, fact=fact)


def _failed(subject: str, fact: str, hint: str) -> Check:
    return Check(subject=subject, verdict=Verdict.FAILED, fact=fact, hint=hint)


def _unknown(subject: str, fact: str, hint: str = "") -> Check:
    return Check(subject=subject, verdict=Verdict.LOOK, fact=fact, hint=hint)
