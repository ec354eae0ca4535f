"""`AwsCloud`: the `Cloud` protocol over EC2."""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from spothop_master.clouds.aws import errors, reading, requests
from spothop_master.clouds.aws.calls import AwsCalls, Caller
from spothop_master.clouds.aws.config import AwsConfig
from spothop_master.clouds.aws.doctor import Doctor
from spothop_master.clouds.aws.known import SpotRequests, Whereabouts
from spothop_master.clouds.aws.offers import GRACE_S, Offers, VmType, types_of
from spothop_master.clouds.base import (
    AuthFailed,
    BadRequest,
    Check,
    CloudError,
    CloudLimits,
    LaunchSpec,
    PoolInfo,
    PriceTooHigh,
    Remain,
    Throttled,
    Unavailable,
    Vm,
)
from spothop_master.clouds.clock import CloudClock
from spothop_master.core.evidence import EndCause

log = logging.getLogger(__name__)
T = TypeVar("T")

SETTLE_S = 120.0
"""EC2's API is eventually consistent; its documentation names no bound, people saw seconds."""
JOIN_TIMEOUT_S = 900.0
"""GPU images take minutes to boot, larger VMs longer."""
LIST_EVERY_S, LIST_EVERY_REGION_S = 6.0, 5.0
"""A listing is two requests a region: so there are 24 in a minute at most."""
IMAGES_EVERY = timedelta(hours=1)
_PARAMETER = "resolve:ssm:"


class AwsCloud:
    """VMs of one AWS account in the regions of its configuration. Thread-safe."""

    name = "aws"
    separates_users = True

    def __init__(
        self,
        config: AwsConfig,
        *,
        types: Mapping[str, VmType] | None = None,
        calls: Caller | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """`types`: those of the catalogue. Calls nothing, and imports no SDK."""
        self._config = config
        self._types = types_of(config, types or {})
        self._calls = calls or AwsCalls(profile=config.profile, endpoint_url=config.endpoint_url)
        self._now = now
        self._offers = Offers(config, self._types, self._calls, now=now)
        self._moments = reading.Moments()
        self._clock = CloudClock()
        self._whereabouts = Whereabouts(timedelta(seconds=SETTLE_S))
        """Where VMs are that were launched or listed here; others are looked for."""
        self._spot_requests = {region: SpotRequests() for region in config.regions}
        self._images: dict[tuple[str, str], tuple[datetime, requests.Image]] = {}
        self._lock = threading.Lock()

    @property
    def limits(self) -> CloudLimits:
        return CloudLimits(
            regions=frozenset(self._config.regions),
            list_every_s=max(LIST_EVERY_S, LIST_EVERY_REGION_S * len(self._config.regions)),
            settle_s=SETTLE_S,
            join_timeout_s=JOIN_TIMEOUT_S,
            launches_per_s=self._config.launches_per_s,
            launches_in_burst=5,
        )

    # --- pools ----------------------------------------------------------------------------------

    def pools(self) -> Sequence[PoolInfo]:
        """Every VM type that a zone has, where a VM can be placed and its prices are known.

        Raises AuthFailed, Throttled and Unavailable.
        """
        return self._offers.read()

    # --- launch ---------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        """RunInstances, once. Raises every CloudError there is."""
        pool = spec.pool
        region = self._config.regions.get(pool.region)
        if pool.cloud != self.name or region is None:
            raise BadRequest(f"{pool}: its region is none of {', '.join(self._config.regions)}")
        price = self._offers.spot_price(pool) if pool.spot else None
        if spec.max_price is not None and price is not None and price > spec.max_price:
            raise PriceTooHigh(f"{pool} costs {price:g} USD/h, more than {spec.max_price:g}")
        known = self._types.get(pool.vm, VmType(prices={}))
        named = spec.image or self._config.image_for(pool.region, gpu=known.gpu, arch=known.arch)
        place = requests.Place(
            zone=pool.zone,
            subnet=region.subnets.get(pool.zone),
            security_groups=tuple(region.security_groups),
        )
        request = requests.run_instances(
            spec,
            token,
            image=self._image(pool.region, named),
            place=place,
            profile=self._config.instance_profile,
            disk_gb=self._config.disk_gb,
        )
        answer = self._calls.call("ec2", pool.region, "run_instances", **request)
        [instance] = answer["Instances"]
        return self._read([instance], pool.region, {})[0]

    def _image(self, region: str, named: str) -> requests.Image:
        """Asked for once an hour: what a parameter names changes with the image's releases."""
        with self._lock:
            known = self._images.get((region, named))
        if known is not None and timedelta() <= self._now() - known[0] < IMAGES_EVERY:
            return known[1]
        image_id = named
        if named.startswith(_PARAMETER):
            name = named.removeprefix(_PARAMETER)
            answer = self._calls.call("ssm", region, "get_parameter", Name=name)
            image_id = answer["Parameter"]["Value"]
        answer = self._calls.call("ec2", region, "describe_images", ImageIds=[image_id])
        found = reading.image(answer)
        if found is None:
            raise BadRequest(f"no image {image_id} in {region} that we may use")
        with self._lock:
            self._images[region, named] = self._now(), found
        return found

    # --- listing --------------------------------------------------------------------------------

    def list(self, owner: str) -> Sequence[Vm]:
        """Of all regions, those that ended in the last hour or so included. Raises CloudError when
        one region does not answer."""
        found = [vm for region in self.regions() for vm in self.list_region(region, owner)]
        return sorted(found, key=lambda vm: (vm.requested_at, vm.id))

    def regions(self) -> Sequence[str]:
        return [*self._config.regions]

    def list_region(self, region: str, owner: str) -> Sequence[Vm]:
        """Its VMs are told though nobody answers for its spot requests: `gap` says so."""
        question = {**requests.of_owner(owner), "MaxResults": requests.PAGE}
        pages = self._calls.pages("ec2", region, "describe_instances", **question)
        told = reading.instances(self._timed(pages))
        rows = [row for row in told if reading.is_of(owner, row)]
        asks = any(map(reading.is_spot_and_alive, rows))
        self._spot_requests[region].error = None
        found = self._read(rows, region, self._statuses(region, owner) if asks else {})
        with self._lock:
            listed = {vm.id for vm in found}
            self._moments.forget(self._whereabouts.unlisted(region, listed, now=self._now()))
        return found

    def _timed(self, pages: Iterable[Any]) -> Iterator[Any]:
        """The same answers, by whose dates EC2's clock is known."""
        asked_at = self._now()
        for page in pages:
            self._clock.heard(reading.date(page), asked_at=asked_at, now=self._now())
            yield page
            asked_at = self._now()

    def gap(self, region: str) -> CloudError | None:
        """Why the newest listing of this region does not have what EC2 says of spot requests."""
        return self._spot_requests[region].error

    def _statuses(self, region: str, owner: str) -> Mapping[str, reading.SpotStatus]:
        """What spot requests say: that EC2 takes a VM is to be seen there while it still runs."""
        known, now = self._spot_requests[region], self._now()
        if not known.is_due(now):
            return known.statuses
        question = {**requests.of_owner(owner), "MaxResults": requests.PAGE}
        try:
            statuses = reading.spot_statuses(
                self._calls.pages("ec2", region, "describe_spot_instance_requests", **question)
            )
        except (AuthFailed, Throttled, Unavailable) as error:
            if isinstance(error, AuthFailed) and error.code not in errors.FORBIDDEN:
                raise  # such as a session that has expired
            known.failed(error, now=now)
            log.warning("AWS %s: notices are not seen from outside: %s", region, error)
        else:
            known.answered(statuses)
        return known.statuses

    def _read(
        self,
        rows: Iterable[Mapping[str, Any]],
        region: str,
        statuses: Mapping[str, reading.SpotStatus],
    ) -> builtins.list[Vm]:
        with self._lock:
            found = [
                reading.vm(
                    row,
                    region,
                    statuses.get(row["InstanceId"]),
                    self._moments,
                    now=self._now(),
                    ahead=self._clock.ahead,
                )
                for row in rows
            ]
            self._whereabouts.saw((vm.id for vm in found), region)
        return found

    def end_cause(self, vm_id: str) -> EndCause | None:
        """What the spot request says of a VM that is not listed any more. Raises CloudError."""
        wanted = [{"Name": "instance-id", "Values": [vm_id]}]

        def told(region: str) -> EndCause | None:
            pages = self._calls.pages(
                "ec2", region, "describe_spot_instance_requests", Filters=wanted
            )
            status = reading.spot_statuses(pages).get(vm_id)
            if status is None or not status.ended:
                return None
            return EndCause.PREEMPTED if status.takes else EndCause.TERMINATED

        return self._of_its_region(vm_id, told)

    def _of_its_region(self, vm_id: str, ask: Callable[[str], T | None]) -> T | None:
        """The answer of the region that has this VM; `ask` gives None where it is not known. Where
        its region is not known, one that fails keeps no other one from being asked; its error is
        raised when none had an answer."""
        failed: CloudError | None = None
        for region in self._where(vm_id):
            try:
                found = ask(region)
            except CloudError as error:
                if error.code not in errors.GONE:
                    failed = failed or error
            else:
                if found is not None:
                    return found
        if failed is not None:
            raise failed
        return None

    def _where(self, vm_id: str) -> Sequence[str]:
        """The region of this VM, or all of them."""
        with self._lock:
            known = self._whereabouts.of(vm_id)
        return [known] if known is not None else [*self._config.regions]

    def console(self, vm_id: str) -> str:
        """GetConsoleOutput: 64 KB of a boot at most, the newest where the type can tell that.
        Raises CloudError."""

        def output(region: str) -> str:
            answer = self._calls.call("ec2", region, "get_console_output", InstanceId=vm_id)
            return str(answer.get("Output") or "")

        return self._of_its_region(vm_id, output) or ""

    # --- ends -----------------------------------------------------------------------------------

    def terminate(self, vm_id: str) -> None:
        """TerminateInstances. Right after a launch EC2 may not know the VM: then nothing happens,
        and whoever wants its end asks again. Raises CloudError."""

        def asked(region: str) -> bool:
            self._calls.call("ec2", region, "terminate_instances", InstanceIds=[vm_id])
            return True

        self._of_its_region(vm_id, asked)

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        """Let AWS's Fault Injection Service take a spot VM back: a rebalance recommendation at
        once, the notice 120 s before the end, as when EC2 does it.

        `notice_s` is rounded to minutes. Raises BadRequest (unknown or ended VM, on-demand VM, less
        than the 120 s that AWS always gives) and other CloudErrors.
        """
        if notice_s is not None and not notice_s >= GRACE_S:
            raise BadRequest(
                f"notice_s is {notice_s}; AWS warns {GRACE_S:g} s ahead and takes no less; leave it"
                " out"
            )
        region, owner_id, instance = self._find(vm_id)
        partition = _partition(region)
        role = self._config.interruption_role
        if not role.startswith("arn:"):
            role = f"arn:{partition}:iam::{owner_id}:role/{role}"
        template = requests.interruption(
            f"arn:{partition}:ec2:{region}:{owner_id}:instance/{vm_id}",
            role_arn=role,
            after_s=notice_s or GRACE_S,
            token=f"{vm_id}-{self._now():%Y%m%d%H%M%S}",
            tags=reading.own_tags(instance),
        )
        made = self._calls.call("fis", region, "create_experiment_template", **template)
        template_id = made["experimentTemplate"]["id"]
        try:
            self._calls.call(
                "fis",
                region,
                "start_experiment",
                experimentTemplateId=template_id,
                clientToken=template["clientToken"],
            )
        finally:
            try:
                self._calls.call("fis", region, "delete_experiment_template", id=template_id)
            except CloudError as error:  # it costs nothing, and the VM is what matters
                log.warning("AWS %s: FIS keeps template %s: %s", region, template_id, error)

    def _find(self, vm_id: str) -> tuple[str, str, Mapping[str, Any]]:
        """Region, account and description of a spot VM that runs."""
        wanted = [{"Name": "instance-id", "Values": [vm_id]}]

        def described(region: str) -> tuple[str, str, Mapping[str, Any]] | None:
            answer = self._calls.call("ec2", region, "describe_instances", Filters=wanted)
            for reservation in answer["Reservations"]:
                for instance in reservation["Instances"]:
                    return region, reservation["OwnerId"], instance
            return None

        found = self._of_its_region(vm_id, described)
        if found is None:
            raise BadRequest(f"no VM {vm_id} in AWS")
        if found[2]["State"]["Name"] not in ("pending", "running"):
            raise BadRequest(f"VM {vm_id} has ended")
        if found[2].get("InstanceLifecycle") != "spot":
            raise BadRequest(f"VM {vm_id} is on demand; only spot VMs are preempted")
        return found

    # --- what the account lacks -----------------------------------------------------------------

    def diagnose(self, storage_url: str) -> Sequence[Check]:
        asked = Doctor(self._config, self._calls, self._image, self._now)
        return [*asked.checks(storage_url)]

    # --- what costs money beside VMs ------------------------------------------------------------

    def remains(self, owner: str, *, region: str | None = None) -> Sequence[Remain]:
        """Disks, network interfaces and addresses with this owner's tag that no VM has. Raises
        CloudError."""
        wanted = self.regions() if region is None else [region]
        return [remain for each in wanted for remain in self._remains(each, owner)]

    def _remains(self, region: str, owner: str) -> Iterator[Remain]:
        loose, ours = requests.of_owner(owner, status=["available"]), requests.of_owner(owner)
        yield from reading.volumes(
            self._calls.pages("ec2", region, "describe_volumes", **loose), region
        )
        yield from reading.network_interfaces(
            self._calls.pages("ec2", region, "describe_network_interfaces", **loose), region
        )
        yield from reading.addresses(
            self._calls.call("ec2", region, "describe_addresses", **ours), region
        )

    def remove(self, remain: Remain) -> None:
        """EC2 refuses what is in use. Raises CloudError."""
        operation, named = requests.REMOVALS[remain.kind]
        try:
            self._calls.call("ec2", remain.region, operation, **{named: remain.id})
        except CloudError as error:
            if error.code not in errors.REMOVED:
                raise


def _partition(region: str) -> str:
    """The part of AWS that a region belongs to, as ARNs name it."""
    for prefix, partition in (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov")):
        if region.startswith(prefix):
            return partition
    return "aws"
