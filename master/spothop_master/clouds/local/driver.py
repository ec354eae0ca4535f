"""`LocalCloud`: the `Cloud` protocol over the folders of the local cloud's directory.

    <directory>/lock          flock for launches and orders
    <directory>/ledger.json   per pool: the ids of all launches in order, and refusals so far
    <directory>/vms/<id>/     see disk.py

The VM's id is made from the client token, so a repeated launch finds the first one's folder, after
a crash too. Order in a launch: folder under a temporary name, rename, ledger, supervisor. A crash
before the rename leaves nothing; one after it leaves a folder whose lock is free, that is, a VM
whose supervisor is dead: list() cleans it up.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from spothop.catalog.needs import Shape
from spothop.wire import Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    BadRequest,
    CloudLimits,
    CloudVmState,
    LaunchSpec,
    NoCapacity,
    PoolInfo,
    PriceTooHigh,
    Unavailable,
    Vm,
)
from spothop_master.clouds.local.config import Delay, LocalConfig, PoolConfig
from spothop_master.clouds.local.disk import (
    LOCK_FD,
    MARKER,
    VmFolder,
    VmSpec,
    locked,
    read_json,
    write_json,
)
from spothop_master.clouds.local.vms import NEW, VmFolders
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope

_HANDED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*"),
    *("PYTHON*", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("CUDA_*", "NVIDIA_*", "OMP_*", "MKL_*"),
)
"""Variables of the master's environment that reach a VM; `environment` of the configuration names
more. Of all others nobody knows what they hold: the master's has its settings, and the credentials
of clouds, databases and registries."""
_KEPT_FROM_VMS = ("SPOTHOP_MASTER_", "SPOTHOP_URL", "SPOTHOP_TOKEN", "SPOTHOP_HOME")
"""Whatever the configuration says, variables with these prefixes never reach a VM."""


@dataclass(frozen=True)
class _Offer:
    config: PoolConfig
    info: PoolInfo


class LocalCloud:
    """VMs are process trees on this machine; see the package's docstring."""

    name = "local"
    limits = CloudLimits(list_every_s=0.2, boots_images=False)

    @property
    def separates_users(self) -> bool:
        return self._config.isolation == "users"

    def __init__(
        self,
        config: LocalConfig,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        rng: random.Random | None = None,
        hidden: Iterable[Path] = (),
    ) -> None:
        """`hidden`: what VMs of another user (`isolation: users`) do not see, beside our folder."""
        self._config = config
        self._hidden = [str(path) for path in (config.directory, *hidden)]
        self._now = now
        self._rng = rng or random.Random()
        self._root = config.directory
        self._offers = {offer.info.pool: offer for offer in _offers(config)}
        self._vms = VmFolders(self._root / "vms", now=now)
        self._supervisors: set[int] = set()

    def pools(self) -> Sequence[PoolInfo]:
        """Every pool of the configuration, as spot and on demand."""
        return [offer.info for offer in self._offers.values()]

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        """Ask for one VM; returns while it is pending.

        Raises NoCapacity, PriceTooHigh, BadRequest (unknown pool, an image, a disk larger than
        ours, or a token that was used for another pool) and Unavailable (the directory cannot be
        used).
        """
        offer = self._offer(spec)
        with self._exclusively():
            known = self._known(spec, token)
            return known or self._create(spec, token, offer)

    def list(self, owner: str) -> Sequence[Vm]:
        """VMs of this owner; those that ended stay listed for `keep_s`. Raises Unavailable."""
        self._reap_supervisors()
        found = []
        with _as_unavailable(self._root):
            for folder in self._vms.all():
                with suppress(FileNotFoundError):  # another process removed it meanwhile
                    vm = self._vms.read(folder)
                    if self._is_past_keeping(vm):
                        self._forget(folder)
                    elif vm.tags.get(OWNER_TAG) == owner and self._is_listed(vm):
                        found.append(vm)
        return sorted(found, key=lambda vm: vm.requested_at)

    def end_cause(self, vm_id: str) -> EndCause | None:
        """Why this VM ended, for `keep_s` after it, also where it is not listed. Raises
        Unavailable."""
        with _as_unavailable(self._root), suppress(FileNotFoundError):
            folder = self._vms.find(vm_id)
            return self._vms.read(folder).cause if folder is not None else None
        return None

    def terminate(self, vm_id: str) -> None:
        """SIGTERM to the agent, SIGKILL to all within a second. Raises Unavailable."""
        with self._exclusively():
            folder = self._vms.find(vm_id)
            if folder is not None and self._vms.read(folder).state is not CloudVmState.TERMINATED:
                self._vms.order(folder, terminate=True)

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        """Take a spot VM back. The announced deadline is always the promised one; the kill comes
        `notice_s` after now, if that is earlier.

        Raises BadRequest (unknown or ended VM, on-demand VM, negative notice) and Unavailable.
        """
        if notice_s is not None and not notice_s >= 0:
            raise BadRequest(f"notice_s is {notice_s}; hint: None, 0 or more seconds")
        with self._exclusively():
            folder = self._vms.find(vm_id)
            if folder is None:
                raise BadRequest(f"no VM {vm_id} in the local cloud")
            vm = self._vms.read(folder)
            if vm.state is CloudVmState.TERMINATED:
                raise BadRequest(f"VM {vm_id} has ended")
            if not vm.pool.spot:
                raise BadRequest(f"VM {vm_id} is on demand; only spot VMs are preempted")
            self._vms.order(folder, preemption=(notice_s,))

    # --- launch ---------------------------------------------------------------------------------

    def _offer(self, spec: LaunchSpec) -> _Offer:
        offer = self._offers.get(spec.pool)
        if offer is None:
            known = ", ".join(str(pool) for pool in self._offers)
            raise BadRequest(f"the local cloud has no pool {spec.pool}; it has {known}")
        if spec.image is not None:
            raise BadRequest(f"the local cloud boots no image ({spec.image}); leave `image` out")
        if spec.disk_gb is not None and spec.disk_gb > (has := self._disk_gb()):
            raise BadRequest(
                f"the job asks for a disk of {spec.disk_gb} GB; that of the local cloud has {has}"
            )
        if spec.max_price is not None and offer.info.price > spec.max_price:
            raise PriceTooHigh(
                f"{spec.pool} costs {offer.info.price:g} USD/h, more than {spec.max_price:g}"
            )
        return offer

    def _disk_gb(self) -> int:
        """Of the disk that all its VMs share."""
        with _as_unavailable(self._root):
            there = next(path for path in (self._root, *self._root.parents) if path.exists())
            return shutil.disk_usage(there).total // 10**9

    def _known(self, spec: LaunchSpec, token: str) -> Vm | None:
        """The VM that this token made already."""
        vm_id = _vm_id(token)
        folder = self._vms.find(vm_id)
        if folder is not None:
            vm = self._vms.read(folder)
            if vm.pool != spec.pool:
                raise BadRequest(f"token {token!r} was used for {vm.pool}, not for {spec.pool}")
            return vm
        launches = [vm_id in ids for ids in self._ledger()["launched"].values()]
        if any(launches):
            raise BadRequest(f"the VM of token {token!r} has ended and is no longer listed")
        return None

    def _create(self, spec: LaunchSpec, token: str, offer: _Offer) -> Vm:
        vm_id, pool = _vm_id(token), str(spec.pool)
        ledger = self._ledger()
        if spec.pool.spot:
            self._check_capacity(offer, ledger)
        ordinal = len(ledger["launched"].setdefault(pool, [])) + 1
        folder = VmFolder(self._vms.path / vm_id)
        aside = VmFolder(self._vms.path / f"{NEW}{vm_id}")
        aside.path.mkdir(mode=0o700)
        os.mkfifo(aside.doorbell, 0o600)
        vm_spec = self._vm_spec(spec, token, offer, ordinal)
        failed = ledger.setdefault("failed", {}).setdefault(pool, 0)
        if spec.pool.spot and failed < offer.config.fail:
            fails = "stays" if offer.config.keep_failed else "ends"
            vm_spec = replace(vm_spec, fails=fails)
            ledger["failed"][pool] = failed + 1
        aside.write_spec(vm_spec)
        aside.write_state(CloudVmState.PENDING.value)
        with locked(aside.lock) as lock:
            assert lock is not None
            aside.path.rename(folder.path)
            ledger["launched"][pool].append(vm_id)
            write_json(self._root / "ledger.json", ledger)
            self._supervisors.add(_start_supervisor(folder, lock, self._config.environment))
            return self._vms.read(folder)

    def _check_capacity(self, offer: _Offer, ledger: dict[str, Any]) -> None:
        pool, config = offer.info.pool, offer.config
        refused = ledger["refused"].get(str(pool), 0)
        if refused < config.refuse:
            ledger["refused"][str(pool)] = refused + 1
            write_json(self._root / "ledger.json", ledger)
            raise NoCapacity(f"{pool}: no capacity (refusal {refused + 1} of {config.refuse})")
        if config.capacity is None:
            return
        vms = [self._vms.read(folder) for folder in self._vms.all()]
        taken = sum(vm.pool == pool and vm.state is not CloudVmState.TERMINATED for vm in vms)
        if taken >= config.capacity:
            raise NoCapacity(f"{pool}: no capacity ({taken} of {config.capacity} VMs taken)")

    def _vm_spec(self, spec: LaunchSpec, token: str, offer: _Offer, ordinal: int) -> VmSpec:
        config = offer.config
        scripts = [item for item in config.preemptions if item.launch == ordinal]
        planned = scripts[0] if scripts and spec.pool.spot else None
        dialect = {"dialect": config.dialect.value}
        return VmSpec(
            id=_vm_id(token),
            token=token,
            pool=spec.pool.model_dump(),
            tags=dict(spec.tags),
            requested_at=self._now().isoformat(),
            dialect=config.dialect.value,
            grace_s=config.grace_s,
            allocation_s=self._draw(config.allocation_s),
            boot_s=self._draw(config.boot_s),
            user_data=spec.user_data.model_dump(mode="json") | dialect,
            command=self._config.agent_command,
            isolation=self._config.isolation,
            uid=self._config.uid,
            hidden=self._hidden,
            reads=list(spec.reads),
            writes=list(spec.writes),
            forward=self._config.forward,
            script=planned.model_dump(include={"after_s", "notice_s"}) if planned else None,
        )

    def _draw(self, delay: Delay) -> float:
        return self._rng.uniform(delay.low, delay.high)

    # --- the directory --------------------------------------------------------------------------

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """One launch or order at a time, over all threads and processes."""
        self._reap_supervisors()
        with _as_unavailable(self._root):
            self._vms.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._root / "lock"):
                self._vms.drop_unfinished()
                yield

    def _ledger(self) -> dict[str, Any]:
        path = self._root / "ledger.json"
        return read_json(path) if path.exists() else {"launched": {}, "refused": {}}

    def _forget(self, folder: VmFolder) -> None:
        """Under the lock, so that a launch or order never sees a folder vanish."""
        with locked(self._root / "lock", wait=False) as lock:
            if lock is not None:
                self._vms.forget(folder)

    def _is_listed(self, vm: Vm) -> bool:
        return self._config.list_preempted or vm.cause is not EndCause.PREEMPTED

    def _is_past_keeping(self, vm: Vm) -> bool:
        kept = timedelta(seconds=self._config.keep_s)
        return vm.ended_at is not None and self._now() - vm.ended_at > kept

    def _reap_supervisors(self) -> None:
        """They are our children while we live; left alone they would stay as zombies."""
        for pid in tuple(self._supervisors):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # another thread was faster
                ended = pid
            if ended:
                self._supervisors.discard(pid)


def _offers(config: LocalConfig) -> Iterator[_Offer]:
    machine = _machine()
    for item in config.pools:
        shape = Shape(
            cpus=item.cpus or machine.cpus,
            memory_gib=item.memory_gib or machine.memory_gib,
            arch=machine.arch,
        )
        for spot in (True, False):
            pool = Pool(cloud="local", region=item.region, zone=item.zone, vm=item.vm, spot=spot)
            info = PoolInfo(
                pool=pool,
                price=item.price if spot else item.on_demand_price,
                on_demand_price=item.on_demand_price,
                grace_s=item.grace_s,
                dialect=item.dialect,
                shape=shape,
            )
            yield _Offer(item, info)


def _machine() -> Shape:
    """This machine, its memory as it is sold: the kernel keeps some of it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    arch = {"aarch64": "arm64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    return Shape(cpus=os.cpu_count() or 1, memory_gib=max(1.0, round(memory)), arch=arch)


def _vm_id(token: str) -> str:
    return "lvm-" + hashlib.sha256(token.encode()).hexdigest()[:16]


def handed_on(environ: Mapping[str, str], more: Iterable[str]) -> dict[str, str]:
    """What of this environment reaches a VM: what we know to be harmless, and the names in `more`;
    one that ends in `*` is the beginning of names."""
    names = [*_HANDED_ON, *more]
    return {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, wanted) for wanted in names)
        and not name.startswith(_KEPT_FROM_VMS)
    }


def _start_supervisor(folder: VmFolder, lock: int, names: Iterable[str]) -> int:
    """A detached process in a session of its own that holds the lock from its birth."""
    environment = handed_on(os.environ, names)  # noqa: TID251  passed on, nothing is read
    command = [sys.executable, "-m", "spothop_master.clouds.local.vm_supervisor", str(folder.path)]
    console = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Not subprocess.Popen: a supervisor outlives us, and Popen warns of children that do.
    return os.posix_spawn(
        command[0],
        command,
        environment | {MARKER: folder.id},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, lock, LOCK_FD),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder.console), console, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD),
    )


@contextmanager
def _as_unavailable(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the local cloud's directory {root} cannot be used: {error}", scope=Scope.ACCOUNT
        ) from error
