"""`AzureCloud`: the `Cloud` protocol over Azure Resource Manager."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

from spothop_master.clouds.azure import errors, prices, reading, requests
from spothop_master.clouds.azure.calls import DELETE, LAUNCH, NO_SUCH, AzureCalls, Caller, rows
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.azure.doctor import Doctor
from spothop_master.clouds.azure.memory import Memory
from spothop_master.clouds.azure.offers import GRACE_S, Offers, VmType, types_of
from spothop_master.clouds.base import (
    OWNER_TAG,
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
    Vm,
)
from spothop_master.core.evidence import EndCause

log = logging.getLogger(__name__)

SETTLE_S = 60.0
"""From a PUT whose answer was lost until a listing has to show what it made."""
JOIN_TIMEOUT_S = 900.0
"""GPU images take minutes to boot, larger VMs longer."""
LIST_EVERY_S = 6.0
"""One request for each 200 VMs or so; the limit on them is hundreds in three minutes."""
LOOKS = 25
"""VMs that one listing looks for by their names; others that it lacks wait for the next one."""
LOG_EVERY = timedelta(seconds=4)
"""Between two questions to the activity log: each is answered for all VMs."""
LOG_SINCE, LOG_BEFORE = timedelta(hours=2), timedelta(minutes=15)
"""It is asked since then; where all that are gone were seen, since so long before the first of
them was missed: an event is written down when it begins."""
LOG_PAGES = 20
"""The most that one answer is followed, the newest events first: some thousand."""
LOG_AGAIN = timedelta(hours=1)
"""After it was denied."""
LOG_PATH = "providers/Microsoft.Insights/eventtypes/management/values"
LOG_VERSION = "2015-04-01"
CONSOLE = "virtual_machines.retrieve_boot_diagnostics_data"
VMS, DISKS = "Microsoft.Compute/virtualMachines", "Microsoft.Compute/disks"
CARDS, ADDRESSES = "Microsoft.Network/networkInterfaces", "Microsoft.Network/publicIPAddresses"
COMPUTE_VERSION, DISKS_VERSION, NETWORK_VERSION = "2024-07-01", "2024-03-02", "2024-05-01"
REMOVALS = {
    "disk": (DISKS, DISKS_VERSION),
    "network interface": (CARDS, NETWORK_VERSION),
    "address": (ADDRESSES, NETWORK_VERSION),
}
"""By the kind of what is left over."""


class AzureCloud:
    """VMs of one resource group in the regions of its configuration. Thread-safe."""

    name = "azure"
    separates_users = True

    def __init__(
        self,
        config: AzureConfig,
        *,
        types: Mapping[str, VmType] | None = None,
        calls: Caller | None = None,
        ask_prices: prices.Ask | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """`types`: those of the catalogue. Calls nothing, and imports no SDK."""
        self._config = config
        self._types = types_of(config, types or {})
        self._calls = calls or AzureCalls(
            subscription=config.subscription,
            endpoint_url=config.endpoint_url,
            credential=config.credential,
            client_id=config.client_id,
        )
        self._ask_prices = ask_prices or prices.asker(config.prices_url)
        self._now = now
        self._offers = Offers(config, self._types, self._calls, ask=self._ask_prices, now=now)
        self._memory = Memory()
        self._log_at: datetime | None = None
        self._log_told: Mapping[str, EndCause] = {}
        """What it said then."""
        self._log_denied_at: datetime | None = None

    @property
    def limits(self) -> CloudLimits:
        """Of all regions: the listing is that of the resource group."""
        return CloudLimits(
            list_every_s=LIST_EVERY_S,
            settle_s=SETTLE_S,
            join_timeout_s=JOIN_TIMEOUT_S,
            launches_per_s=self._config.launches_per_s,
            launches_in_burst=5,
        )

    # --- pools ----------------------------------------------------------------------------------

    def pools(self) -> Sequence[PoolInfo]:
        """Every VM type that a zone has, where its prices are known.

        Raises AuthFailed, Throttled and Unavailable.
        """
        return self._offers.read()

    # --- launch ---------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        """One PUT, answered before the VM is made. Raises every CloudError there is."""
        pool = spec.pool
        if pool.cloud != self.name or pool.region not in self._config.regions:
            known_regions = ", ".join(self._config.regions)
            raise BadRequest(f"{pool}: its region is none of {known_regions}")
        price = self._offers.spot_price(pool) if pool.spot else None
        if spec.max_price is not None and price is not None and price > spec.max_price:
            raise PriceTooHigh(f"{pool} costs {price:g} USD/h, more than {spec.max_price:g}")
        known = self._types.get(pool.vm, VmType(prices={}))
        image = spec.image or self._config.image_for(pool.region, gpu=known.gpu, arch=known.arch)
        body = requests.virtual_machine(spec, token, config=self._config, image=image)
        name = requests.name_of(token)
        if (ended := self._memory.ended(name)) is not None:
            return ended  # its name is free again, and its token is not
        try:
            row = self._calls.call(LAUNCH, self._config.resource_group, name, body)
        except CloudError as error:
            if error.code not in errors.TAKEN:
                raise _of_its_image(error, spec) from error
            row = self._made_before(name, body)
        vm = self._read(row)
        self._memory.seen(vm)
        return vm

    def _made_before(self, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """There is one of this name. Raises Ambiguous for one that another request made: the
        listing tells whose it is."""
        row = self._get(name)
        if row is None:
            raise Ambiguous(f"VM {name} was there, and is gone", code="PreconditionFailed")
        tag = requests.DIGEST_TAG
        if (row.get("tags") or {}).get(tag) != body["tags"][tag]:
            raise Ambiguous(f"VM {name} was made by another request", code="PreconditionFailed")
        return row

    def _get(self, name: str, **params: Any) -> Mapping[str, Any] | None:
        """None: there is no such VM. Raises CloudError."""
        if not requests.is_name(name):
            return None
        try:
            found: Mapping[str, Any] = self._calls.call(
                "virtual_machines.get", self._config.resource_group, name, **params
            )
        except CloudError as error:
            if error.code in errors.GONE:
                return None
            raise
        return found

    # --- listing --------------------------------------------------------------------------------

    def list(self, owner: str) -> Sequence[Vm]:
        """Those that ended in the last hour, and of which it is known why, included. Raises
        CloudError."""
        whose = (OWNER_TAG, owner)
        found = rows(self._group("GET", VMS, version=COMPUTE_VERSION))
        living = [self._read(row) for row in found if reading.owner(row) == owner]
        for vm in living:
            self._memory.seen(vm)
        missing = self._memory.missing(whose, (vm.id for vm in living))
        for vm in missing[:LOOKS]:
            row = self._get(vm.id)  # a listing may be late; what it says of a name is not
            if row is None:
                self._memory.is_gone(vm.id, now=self._now())
            else:
                living.append(self._read(row))
        living += missing[LOOKS:]
        self._learn()
        living += self._memory.all_ended(whose, now=self._now())
        return sorted(living, key=lambda vm: (vm.requested_at, vm.id))

    def _read(self, row: Mapping[str, Any]) -> Vm:
        name, now, memory = row["name"], self._now(), self._memory
        requested_at = reading.created_at(row) or memory.first(name, now=now)
        now = max(now, requested_at)  # which is by Azure's clock
        state = reading.state_of(row, ran=memory.ran(name) is not None)
        refusal = None
        if reading.has_failed(row) and memory.ran(name) is None:
            refusal = self._refusal(name)
            runs = refusal is None and memory.knows_refusal(name)
            state = CloudVmState.RUNNING if runs else CloudVmState.PENDING
        if state is CloudVmState.PENDING:
            memory.pending(name)
        elif state is CloudVmState.RUNNING:
            memory.runs(name, requested_at, now=now)
        ours = state is CloudVmState.STOPPING and memory.asked(name)
        return reading.vm(
            row,
            state=state,
            requested_at=requested_at,
            running_at=memory.ran(name),
            error=refusal or memory.refusal(name),
            cause=EndCause.TERMINATED if ours else None,
        )

    def _refusal(self, name: str) -> CloudError | None:
        """Why its creation failed: only the instance view tells, and it is asked for once. None
        for one that runs all the same, and for one that has just gone."""
        if not self._memory.knows_refusal(name):
            row = self._get(name, expand="instanceView")
            if row is not None:
                self._memory.refused(name, reading.refusal(row))
        return self._memory.refusal(name)

    # --- why a VM is gone -----------------------------------------------------------------------

    def end_cause(self, vm_id: str) -> EndCause | None:
        """What is known of its end; UNKNOWN where nobody may read the activity log. The log is
        minutes behind. Raises CloudError."""
        if self._memory.asked(vm_id):
            return EndCause.TERMINATED
        lost = self._memory.lost()
        told = self._log(lost if vm_id in lost else {})
        self._tell(told)
        ended = self._memory.ended(vm_id)
        if ended is not None and ended.cause is not None:
            return ended.cause
        found = told.get(vm_id.lower())
        return EndCause.UNKNOWN if found is None and self._is_denied() else found

    def _learn(self) -> None:
        """Why those ended that are gone."""
        for name in self._memory.lost():
            if self._memory.asked(name):
                self._memory.over(name, EndCause.TERMINATED)
        lost = self._memory.lost()
        if lost:
            try:
                self._tell(self._log(lost))
            except CloudError as error:  # the listing itself is whole
                log.warning("Azure: the activity log does not tell why VMs ended: %s", error)

    def _tell(self, found: Mapping[str, EndCause]) -> None:
        for name in self._memory.lost():
            cause = found.get(name.lower())
            if cause is not None:
                self._memory.over(name, cause)

    def _is_denied(self) -> bool:
        denied = self._log_denied_at
        return denied is not None and timedelta() <= self._now() - denied < LOG_AGAIN

    def _log(self, lost: Mapping[str, datetime]) -> Mapping[str, EndCause]:
        """By the name of the VM; what it said before where it was asked just now. `lost`: when
        those were missed that are asked about, all of them; none: it may be any. Raises
        CloudError."""
        now, before = self._now(), self._log_at
        if self._is_denied():
            return {}
        if before is not None and timedelta() <= now - before < LOG_EVERY:
            return self._log_told
        self._log_at = now
        since = min([*lost.values(), now]) - (LOG_BEFORE if lost else LOG_SINCE)
        wanted = (
            f"eventTimestamp ge '{since:%Y-%m-%dT%H:%M:%SZ}'"
            f" and resourceGroupName eq '{self._config.resource_group}'"
        )
        path = f"/subscriptions/{self._config.subscription}/{LOG_PATH}"
        shown = "operationName,status,resourceId,eventTimestamp"
        question = {"$filter": wanted, "$select": shown}
        pages = self._calls.ask("GET", path, version=LOG_VERSION, **question)
        try:
            self._log_told = reading.ends(islice(pages, LOG_PAGES))
        except AuthFailed as error:
            if error.code not in errors.FORBIDDEN:
                raise
            self._log_denied_at, self._log_told = now, {}
            log.warning("Azure: why a VM is gone is not told: %s", error)
        return self._log_told

    def console(self, vm_id: str) -> str:
        """What its serial port wrote, 64 KB at most, some minutes behind; Azure gives an address
        for it that works for two hours. Raises CloudError."""
        if not requests.is_name(vm_id):
            return ""
        try:
            found = self._calls.call(CONSOLE, self._config.resource_group, vm_id)
        except CloudError as error:
            if error.code not in errors.GONE:
                raise
            return ""
        url = found.get("serialConsoleLogBlobUri")
        return self._calls.fetch(url) if url else ""

    # --- ends -----------------------------------------------------------------------------------

    def terminate(self, vm_id: str) -> None:
        """DELETE, which takes what was made with it along, also after a creation that failed. It
        is harmless while another one is at it. Raises CloudError."""
        if not requests.is_name(vm_id):
            return
        try:
            status = self._calls.call(
                DELETE, self._config.resource_group, vm_id, force_deletion=True
            )
        except CloudError as error:
            if error.code not in errors.GONE:
                raise
            return
        if status != NO_SUCH:
            self._memory.ask_end(vm_id)

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        """Let Azure evict a spot VM: the notice comes within half an hour, mostly in seconds.

        Raises BadRequest (unknown or ended VM, on-demand VM, another notice than Azure's own) and
        other CloudErrors.
        """
        if notice_s is not None and notice_s != GRACE_S:
            raise BadRequest(
                f"notice_s is {notice_s}; Azure gives its notice of {GRACE_S:g} s, and no other;"
                " leave it out"
            )
        row = self._get(vm_id)
        if row is None:
            raise BadRequest(f"no VM {vm_id} in Azure")
        if not reading.pool(row).spot:
            raise BadRequest(f"VM {vm_id} is on demand; only spot VMs are preempted")
        if reading.state_of(row, ran=True) is CloudVmState.STOPPING:
            raise BadRequest(f"VM {vm_id} has ended")
        self._calls.call("virtual_machines.simulate_eviction", self._config.resource_group, vm_id)

    # --- what the subscription lacks ------------------------------------------------------------

    def diagnose(self, storage_url: str) -> Sequence[Check]:
        return [*Doctor(self._config, self._calls, self._ask_prices).checks(storage_url)]

    # --- what costs money beside VMs ------------------------------------------------------------

    def remains(self, owner: str, *, region: str | None = None) -> Sequence[Remain]:
        """Disks, network interfaces and addresses with this owner's tag that no VM has. Raises
        CloudError."""
        found = self._remains(owner)
        return [remain for remain in found if region in (None, remain.region)]

    def _remains(self, owner: str) -> Iterator[Remain]:
        yield from reading.disks(rows(self._group("GET", DISKS, version=DISKS_VERSION)), owner)
        yield from reading.cards(rows(self._group("GET", CARDS)), owner)
        yield from reading.addresses(rows(self._group("GET", ADDRESSES)), owner)

    def _group(self, method: str, what: str, *, version: str = NETWORK_VERSION) -> Iterator[Any]:
        """Each page. Raises CloudError."""
        path = f"{self._config.group_id}/providers/{what}"
        return self._calls.ask(method, path, version=version)

    def remove(self, remain: Remain) -> None:
        """Azure refuses what is in use. Raises CloudError."""
        try:
            kind, version = REMOVALS[remain.kind]
            builtins.list(self._group("DELETE", f"{kind}/{remain.id}", version=version))
        except CloudError as error:
            if error.code not in errors.GONE:
                raise


def _of_its_image(error: CloudError, spec: LaunchSpec) -> CloudError:
    """An image that the job names and the master may not use is the job's mistake: other jobs may
    do without it."""
    denied = isinstance(error, AuthFailed) and error.code in errors.FORBIDDEN
    if denied and spec.image and errors.IMAGE.search(str(error)):
        return BadRequest(f"image {spec.image}: {error}", code=error.code)
    return error
