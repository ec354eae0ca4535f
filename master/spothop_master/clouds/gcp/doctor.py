"""What a GCP project lacks before jobs run on it, found without making anything.

Compute Engine has no dry run, so what a launch needs is asked one by one: the permissions on the
project and on the VMs' service account by `testIamPermissions`, the zones, networks and images by
looking at them, the quotas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from spothop.wire import Verdict
from spothop_master.clouds.base import AuthFailed, BadRequest, Check, CloudError
from spothop_master.clouds.clock import check
from spothop_master.clouds.gcp import errors
from spothop_master.clouds.gcp.calls import Caller
from spothop_master.clouds.gcp.config import GcpConfig, RegionConfig

PERMISSIONS = (
    "compute.acceleratorTypes.list",
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.globalOperations.list",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.simulateMaintenanceEvent",
    "compute.machineTypes.list",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.list",
)
"""That the driver needs; those of deploy/gcp/master.yaml."""
QUOTAS: Mapping[str, str] = {
    "PREEMPTIBLE_CPUS": "CPUs of spot VMs (0: they count against CPUS)",
    "CPUS": "CPUs",
    "PREEMPTIBLE_NVIDIA_L4_GPUS": "L4 of spot VMs",
    "PREEMPTIBLE_NVIDIA_A100_GPUS": "A100 of spot VMs",
    "PREEMPTIBLE_NVIDIA_T4_GPUS": "T4 of spot VMs",
}
"""Of a region, by their metric."""
_ROLE = "renew the role of the master: deploy/gcp/README.md"


@dataclass(frozen=True)
class Doctor:
    config: GcpConfig
    calls: Caller

    def checks(self, storage_url: str) -> Iterator[Check]:
        """Stops at credentials that nobody takes. Raises no CloudError."""
        project = f"/projects/{self.config.project}"
        try:
            who = self.calls.who()
            found = self.calls.call("GET", project)
        except CloudError as error:
            subject, hint = self._trouble(error)
            yield _failed(subject, str(error), hint)
            return
        yield _ok("credentials", f"{who}, project {self.config.project}")
        yield check(self.calls.clock, "Google")
        yield self._permissions()
        yield self._account()
        yield self._global_quotas(found)
        for name, region in self.config.regions.items():
            yield from self._region(name, region)
        yield from self._images()
        yield from self._bucket(storage_url)

    def _trouble(self, error: CloudError) -> tuple[str, str]:
        """What the first questions have found, and the way out."""
        if error.code == "accessNotConfigured":
            enable = "gcloud services enable compute.googleapis.com"
            return "project", f"{enable} --project {self.config.project}"
        if error.code in errors.FORBIDDEN:
            return "project", f"is `project` right? If it is: {_ROLE}"
        if isinstance(error, AuthFailed):
            hint = "name a key in GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth"
            return "credentials", f"{hint} application-default login`"
        if isinstance(error, BadRequest):
            return "project", "correct `project`: its id, as `gcloud projects list` shows it"
        return "Google", "ask again later; its APIs have to be in reach"

    def _permissions(self) -> Check:
        subject, path = "permissions", f"/resources/{self.config.project}:testIamPermissions"
        return self._tested(subject, path, PERMISSIONS, "of the project are allowed", _ROLE)

    def _tested(
        self, subject: str, path: str, wanted: Sequence[str], told: str, hint: str
    ) -> Check:
        try:
            answer = self.calls.call("POST", path, body={"permissions": [*wanted]})
        except AuthFailed as error:  # that API may not be enabled, which is no need of jobs
            return _unknown(subject, str(error), hint)
        except CloudError as error:
            return _failed(subject, str(error), hint)
        if lacking := sorted(set(wanted) - set(answer.get("permissions", ()))):
            return _failed(subject, f"denied: {', '.join(lacking)}", hint)
        return _ok(subject, f"{len(wanted)} {told}")

    def _account(self) -> Check:
        subject, email = "service account of the VMs", self.config.account()
        if not email:
            hint = "name a `service_account` that may use the bucket"
            return _unknown(subject, "VMs have no rights, so jobs must bring their own keys", hint)
        path = f"/accounts/{self.config.project}/serviceAccounts/{email}:testIamPermissions"
        hint = f"make {email}, and give the master roles/iam.serviceAccountUser on it"
        told = f"permission on {email} is there"
        return self._tested(subject, path, ["iam.serviceAccounts.actAs"], told, hint)

    # --- one region -----------------------------------------------------------------------------

    def _region(self, name: str, region: RegionConfig) -> Iterator[Check]:
        try:
            found = self.calls.call("GET", f"/projects/{self.config.project}/regions/{name}")
        except CloudError as error:
            yield _failed(f"{name}: look at it", str(error), "is the region's name right?")
            return
        there = sorted(str(zone).rpartition("/")[2] for zone in found.get("zones", ()))
        if strange := sorted(set(region.zones) - set(there)):
            yield _failed(f"{name}: zones", f"no zone {', '.join(strange)}", "correct `zones`")
        else:
            yield _ok(f"{name}: zones", ", ".join(region.zones or there))
        yield self._network(name, region)
        quotas = {str(each.get("metric")): each for each in found.get("quotas", ())}
        for metric, what in QUOTAS.items():
            if metric in quotas:
                yield self._quota(f"{name}: quota", quotas[metric], what)

    def _network(self, name: str, region: RegionConfig) -> Check:
        subject, project = f"{name}: network", f"/projects/{self.config.project}"
        if region.subnet:
            path = f"{project}/regions/{name}/subnetworks/{region.subnet}"
            path, told = (f"/{region.subnet}" if "/" in region.subnet else path), region.subnet
            hint = "correct `subnet` of this region"
        else:
            network = self.config.network
            path = f"/{network}" if "/" in network else f"{project}/global/networks/{network}"
            told, hint = network, "name a `network`, or make it: gcloud compute networks create"
        try:
            self.calls.call("GET", path)
        except AuthFailed as error:
            return _unknown(subject, f"{told}: {error}", "allow compute.networks.get")
        except CloudError as error:
            return _failed(subject, f"{told}: {error}", hint)
        return _ok(subject, told)

    def _quota(self, subject: str, quota: Mapping[str, Any], what: str) -> Check:
        limit, used = float(quota.get("limit", 0)), float(quota.get("usage", 0))
        told = f"{limit:g} {what}, {used:g} in use"
        hint = "ask for more: https://console.cloud.google.com/iam-admin/quotas"
        return _ok(subject, told) if limit > 0 else _unknown(subject, told, hint)

    def _global_quotas(self, project: Mapping[str, Any]) -> Check:
        """New projects have none of these, whatever their regions say."""
        for quota in project.get("quotas", ()):
            if quota.get("metric") == "GPUS_ALL_REGIONS":
                return self._quota("quota", quota, "GPUs in all regions together")
        return _unknown("quota", "the project tells no quota of GPUs", "")

    # --- what is the same everywhere ------------------------------------------------------------

    def _images(self) -> Iterator[Check]:
        for key, image in (("image", self.config.image), ("gpu_image", self.config.gpu_image)):
            try:
                found = self.calls.call("GET", f"/{image}")
            except CloudError as error:
                yield _failed(key, f"{image}: {error}", f"name another `{key}`")
            else:
                yield _ok(key, f"{found.get('name', '')} ({image})")

    def _bucket(self, storage_url: str) -> Iterator[Check]:
        """Of the default storage, with the credentials that we have."""
        url = urlsplit(storage_url)
        if url.scheme != "gs":
            hint = "set SPOTHOP_MASTER_STORAGE_URL=gs://..., or checkpoint.storage in each job"
            yield _unknown("bucket", f"the default storage is {storage_url or 'not set'}", hint)
            return
        name = url.netloc
        try:
            self.calls.call("GET", f"/b/{quote(name)}/o", params={"maxResults": "1"})
            bucket = self.calls.call("GET", f"/b/{quote(name)}")
        except CloudError as error:
            yield _failed("bucket", f"{name}: {error}", "is its name right, and ours the access?")
            return
        where = str(bucket.get("location", "")).lower()
        if where not in self.config.regions:
            hint = "traffic between regions costs money; use a bucket where the VMs are"
            yield _unknown("bucket", f"{name} is in {where}, where no VM of ours is", hint)
        else:
            yield _ok("bucket", f"{name} in {where}")
        rules = (bucket.get("lifecycle") or {}).get("rule", ())
        kinds = {str((rule.get("action") or {}).get("type")) for rule in rules}
        if "AbortIncompleteMultipartUpload" in kinds:
            yield _ok("bucket: unfinished uploads", "a rule ends them")
        else:
            told = "no rule ends them; outputs of killed VMs may leave some"
            hint = "add a life-cycle rule with AbortIncompleteMultipartUpload"
            yield _unknown("bucket: unfinished uploads", told, hint)


def _ok(subject: str, fact: str) -> Check:
    return Check(subject=subject, verdict=Verdict.OK, fact=fact)


def _failed(subject: str, fact: str, hint: str) -> Check:
    return Check(subject=subject, verdict=Verdict.FAILED, fact=fact, hint=hint)


def _unknown(subject: str, fact: str, hint: str = "") -> Check:
    return Check(subject=subject, verdict=Verdict.LOOK, fact=fact, hint=hint)
