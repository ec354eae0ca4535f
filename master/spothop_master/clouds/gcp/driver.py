"""`GcpCloud`: the `Cloud` protocol over Compute Engine."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    Check,
    CloudError,
    CloudLimits,
    CloudVmState,
    LaunchSpec,
    PoolInfo,
    PriceTooHigh,
    Remain,
    Unavailable,
    Vm,
)
from spothop_master.clouds.gcp import errors, reading, requests
from spothop_master.clouds.gcp.calls import Caller, GcpCalls
from spothop_master.clouds.gcp.config import GcpConfig
from spothop_master.clouds.gcp.doctor import Doctor
from spothop_master.clouds.gcp.lives import Lives
from spothop_master.clouds.gcp.offers import GRACE_S, SHUTDOWN_S, Offers, VmType, types_of
from spothop_master.clouds.gcp.requests import VmId
from spothop_master.core.evidence import EndCause

log = logging.getLogger(__name__)

SETTLE_S = 60.0
"""Its lists show an instance as soon as its insert was accepted; no bound is documented."""
JOIN_TIMEOUT_S = 900.0
"""GPU images take minutes to boot, and may have to install a driver."""
LIST_EVERY_S = 6.0
"""A listing is one request for each region, of 1,500 a minute that a project may make."""
NOTICE_FIELD = "preemptionNoticeDuration"
TOKENS = 10_000
"""So many refused tokens are remembered: a token is tried again within minutes, if at all."""


class GcpCloud:
    """VMs of one project in the regions of its configuration. Thread-safe."""

    name = "gcp"
    separates_users = True

    def __init__(
        self,
        config: GcpConfig,
        *,
        types: Mapping[str, VmType] | None = None,
        calls: Caller | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """`types`: those of the catalogue. Calls nothing, and imports no package of Google's."""
        self._config = config
        self._types = types_of(config, types or {})
        self._calls = calls or GcpCalls(endpoint_url=config.endpoint_url, now=now)
        self._offers = Offers(config, self._types, self._calls, now=now)
        self._lives = Lives(now)
        self._notice = config.preemption_notice
        """Whether the project may have the notice that we ask for, as far as it is known."""
        self._refusals: Counter[str] = Counter()
        """By token: launches that came to nothing for certain."""
        self._lock = threading.Lock()

    @property
    def limits(self) -> CloudLimits:
        return CloudLimits(
            regions=frozenset(self._config.regions),
            list_every_s=LIST_EVERY_S,
            settle_s=SETTLE_S,
            join_timeout_s=JOIN_TIMEOUT_S,
            launches_per_s=self._config.launches_per_s,
            launches_in_burst=5,
        )

    def pools(self) -> Sequence[PoolInfo]:
        """Every VM type that a zone has, and whose price is known. Raises CloudError."""
        return self._offers.read(notice=self._notice)

    # --- launch ---------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        """instances.insert, once; a second time without the notice where that is refused. Raises
        every CloudError there is; what is refused inside the operation is told by the listing."""
        self._check_price(spec)
        if not token:
            raise BadRequest("a launch needs a client token")
        notice = self._notice and spec.pool.spot
        try:
            operation = self._insert(spec, token, notice=notice)
        except BadRequest as error:
            if not (notice and NOTICE_FIELD in str(error)):
                raise
            text = (
                "GCP: spot VMs have no notice here; `preemption_notice: false` says so at once: %s"
            )
            log.warning(text, error)
            self._notice = notice = False
            operation = self._insert(spec, token, notice=False)
        vm = self._accepted(spec, token, operation)
        # The offers may still promise the notice: they are read once a minute.
        less = spec.pool.spot and self._config.preemption_notice and not notice
        return replace(vm, grace_s=SHUTDOWN_S) if less else vm

    def _check_price(self, spec: LaunchSpec) -> None:
        """There is no cap that Compute Engine would keep for us."""
        if spec.max_price is None:
            return
        price = self._offers.price(spec.pool)
        if price is None:
            raise PriceTooHigh(f"what {spec.pool} costs is not known, so no cap can be kept")
        if price > spec.max_price:
            raise PriceTooHigh(f"{spec.pool} costs {price:g} USD/h, more than {spec.max_price:g}")

    def _insert(self, spec: LaunchSpec, token: str, *, notice: bool) -> Any:
        """The operation; that of the first insert where this is a repeated one."""
        pool, known = spec.pool, self._types.get(spec.pool.vm, VmType(prices={}))
        gpu = known.gpu or requests.machine(pool.vm).gpus > 0
        body = requests.instance(
            spec,
            token,
            config=self._config,
            image=spec.image or self._config.image_for(gpu=gpu, arch=known.arch),
            gpu=gpu,
            notice=notice,
        )
        asked = {"requestId": requests.request_id(token, body, refusals=self._refusals[token])}
        path = f"{self._zone(pool.zone)}/instances"
        try:
            operation = self._calls.call("POST", path, params=asked, body=body, launch=True)
        except CloudError as error:
            if error.code in errors.TAKEN:  # the first insert is forgotten, what it made is not
                return {}
            denied = isinstance(error, AuthFailed) and error.code in errors.FORBIDDEN
            if denied and spec.image and errors.IMAGE.search(str(error)):
                # The job's mistake: other jobs may do without its image.
                raise BadRequest(f"image {spec.image}: {error}", code=error.code) from error
            raise
        refused = errors.of_operation(operation)
        if refused is not None:
            if refused.code in errors.TAKEN:
                return {}
            self._refuse(token)
            raise refused
        return operation

    def _refuse(self, token: str) -> None:
        with self._lock:
            self._refusals[token] += 1
            while len(self._refusals) > TOKENS:
                del self._refusals[next(iter(self._refusals))]

    def _accepted(self, spec: LaunchSpec, token: str, operation: Mapping[str, Any]) -> Vm:
        """What was accepted now; or earlier, with this token: then it is what it has become."""
        vm_id = VmId(spec.pool.zone, requests.name_of(token))
        if operation and operation.get("status") != "DONE":
            vm = Vm(
                id=str(vm_id),
                token=token,
                pool=spec.pool,
                state=CloudVmState.PENDING,
                requested_at=reading.moment(operation["insertTime"]) + self._calls.clock.ahead,
                tags=dict(spec.tags),
            )
        else:
            vm = self._made(vm_id, token)
        if vm.pool != spec.pool:
            raise BadRequest(f"the token of this launch was used for {vm.pool}")
        return self._lives.saw([vm])[0]

    def _made(self, vm_id: VmId, token: str) -> Vm:
        try:
            return self._read(self._get(vm_id))
        except CloudError as error:
            if error.code not in errors.GONE:
                raise
            text = f"there was a VM for {token}, which is not there any more"
            raise Ambiguous(text, code=error.code) from error

    def _read(self, instance: Mapping[str, Any]) -> Vm:
        return reading.vm(instance, ahead=self._calls.clock.ahead)

    def _get(self, vm_id: VmId) -> Any:
        return self._calls.call("GET", self._path(vm_id))

    def _zone(self, zone: str) -> str:
        return f"/projects/{self._config.project}/zones/{zone}"

    def _path(self, vm_id: VmId) -> str:
        return f"{self._zone(vm_id.zone)}/instances/{vm_id.name}"

    # --- listing --------------------------------------------------------------------------------

    def list(self, owner: str) -> Sequence[Vm]:
        """Of all regions, those that ended in the last hour included, if they were seen before.
        Raises CloudError when a zone of one region does not answer."""
        found = [vm for region in self.regions() for vm in self.list_region(region, owner)]
        return sorted(found, key=lambda vm: (vm.requested_at, vm.id))

    def regions(self) -> Sequence[str]:
        return [*self._config.regions]

    def list_region(self, region: str, owner: str) -> Sequence[Vm]:
        project = f"/projects/{self._config.project}"
        pages = self._calls.pages(
            f"{project}/aggregated/instances", params=requests.of_owner(owner)
        )
        rows, silent = reading.instances(pages)
        if away := sorted(zone for zone in silent if zone.startswith(f"{region}-")):
            raise Unavailable(f"{', '.join(away)}: no listing", code="UNREACHABLE")
        vms = [vm for vm in map(self._read, rows) if vm.pool.region == region]
        listed = [vm.id for vm in self._lives.saw(vms)]
        if unclear := self._lives.unclear(region, owner, listed):
            self._lives.tell(self._fates(unclear), listed=listed)
        over = self._lives.over(region, owner)
        ids = {*listed, *(vm.id for vm in over)}
        return sorted(self._lives.get(ids), key=lambda vm: (vm.requested_at, vm.id))

    def _fates(self, vm_ids: Iterable[str]) -> dict[str, reading.Fate]:
        """What became of these. Without the permission to ask nothing is known of them."""
        names = [parsed.name for each in vm_ids if (parsed := requests.parse_id(each))]
        path = f"/projects/{self._config.project}/aggregated/operations"
        found: dict[str, reading.Fate] = {}
        for first in range(0, len(names), requests.NAMES_AT_ONCE):
            asked = requests.operations_on(names[first : first + requests.NAMES_AT_ONCE])
            try:
                by_vm = reading.operations(self._calls.pages(path, params=asked))
            except AuthFailed as error:
                if error.code not in errors.FORBIDDEN:  # such as credentials that have expired
                    raise
                log.warning("GCP: why VMs end is not known: %s", error)
                return found
            ahead = self._calls.clock.ahead
            found.update((vm_id, reading.fate(each, ahead=ahead)) for vm_id, each in by_vm.items())
        return found

    def end_cause(self, vm_id: str) -> EndCause | None:
        """What the operations say of a VM that is not listed any more; they are kept for two weeks.
        Raises CloudError."""
        fate = self._fates([vm_id]).get(vm_id)
        return fate.cause if fate is not None and fate.over_at is not None else None

    def console(self, vm_id: str) -> str:
        """What the first serial port has. Raises CloudError."""
        parsed = requests.parse_id(vm_id)
        if parsed is None:
            return ""
        try:
            answer = self._calls.call("GET", f"{self._path(parsed)}/serialPort")
        except CloudError as error:
            if error.code in errors.GONE:
                return ""
            raise
        return str(answer.get("contents") or "")

    # --- ends -----------------------------------------------------------------------------------

    def terminate(self, vm_id: str) -> None:
        """instances.delete, which takes the disk, too. Raises CloudError."""
        parsed = requests.parse_id(vm_id)
        if parsed is not None:
            self._delete(self._path(parsed))

    def _delete(self, path: str) -> None:
        """Harmless when it is gone."""
        try:
            self._calls.call("DELETE", path)
        except CloudError as error:
            if error.code not in errors.GONE:
                raise

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        """Let Compute Engine simulate host maintenance, which preempts a spot VM
        (https://cloud.google.com/compute/docs/instances/simulating-host-maintenance).

        Raises BadRequest (unknown or ended VM, on-demand VM, another notice than the one that it
        was launched with) and other CloudErrors.
        """
        parsed = requests.parse_id(vm_id)
        if parsed is None:
            raise BadRequest(f"no VM {vm_id} in GCP")
        try:
            instance = self._get(parsed)
        except CloudError as error:
            if error.code in errors.GONE:
                raise BadRequest(f"no VM {vm_id} in GCP") from error
            raise
        vm = self._read(instance)
        if not vm.pool.spot:
            raise BadRequest(f"VM {vm_id} is on demand; only spot VMs are preempted")
        if vm.state not in (CloudVmState.PENDING, CloudVmState.RUNNING):
            raise BadRequest(f"VM {vm_id} has ended")
        promised = GRACE_S if NOTICE_FIELD in instance.get("scheduling", {}) else SHUTDOWN_S
        if notice_s is not None and not notice_s >= promised:
            text = f"notice_s is {notice_s}; this VM has {promised:g} s, and GCP takes no less"
            raise BadRequest(f"{text}; leave it out")
        self._calls.call("POST", f"{self._path(parsed)}/simulateMaintenanceEvent")

    # --- what the project lacks -----------------------------------------------------------------

    def diagnose(self, storage_url: str) -> Sequence[Check]:
        return [*Doctor(self._config, self._calls).checks(storage_url)]

    # --- what costs money beside VMs ------------------------------------------------------------

    def remains(self, owner: str, *, region: str | None = None) -> Sequence[Remain]:
        """Disks with this owner's label that no VM has. Raises CloudError."""
        path = f"/projects/{self._config.project}/aggregated/disks"
        pages = self._calls.pages(path, params=requests.disks_of(owner))
        wanted = {region} if region is not None else set(self._config.regions)
        found = reading.loose_disks(pages, regions=wanted)
        return [remain for place, remain in found if place in wanted]

    def remove(self, remain: Remain) -> None:
        """Compute Engine refuses what is in use. Raises CloudError."""
        parsed = requests.parse_id(remain.id)
        if parsed is not None and remain.kind == "disk":
            self._delete(f"{self._zone(parsed.zone)}/disks/{parsed.name}")
