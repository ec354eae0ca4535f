"""Makes the clouds that a master works with: each provider is imported when a master names it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spothop.catalog.table import Catalogue, packaged
from spothop_master.clouds.base import Cloud
from spothop_master.clouds.configuration import CloudContext


class UnknownCloud(Exception):
    """No such cloud, or what it needs is not installed; the message says what would do."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One kind of cloud."""

    module: str
    """Has `make(context: CloudContext) -> Cloud`."""
    sdk: str = ""
    """The package that its driver calls; imported at the first call, for it takes a second."""
    extra: str = ""
    """The one of ours that installs it."""


PROVIDERS: Mapping[str, Provider] = {
    "local": Provider(module="spothop_master.clouds.local.making"),
    "aws": Provider(module="spothop_master.clouds.aws.making", sdk="boto3", extra="aws"),
    "gcp": Provider(module="spothop_master.clouds.gcp.making", sdk="google.auth", extra="gcp"),
    "azure": Provider(
        module="spothop_master.clouds.azure.making", sdk="azure.mgmt.compute", extra="azure"
    ),
}


def make_clouds(
    names: Iterable[str] = ("local",),
    *,
    home: Path,
    master_url: str,
    files: Mapping[str, Path | None] | None = None,
    hidden: Iterable[Path] = (),
    catalogue: Catalogue | None = None,
) -> dict[str, Cloud]:
    """The clouds of these names, ready for use; no provider is called.

    `home` is the master's home folder, `master_url` where VMs reach the master, `files` the
    configuration of each cloud, `catalogue` the VM types there are, if not those of the package.
    `hidden` is what no VM under another user sees, beside `home`.
    Raises UnknownCloud, and ConfigError for a bad configuration, or one that this machine cannot
    have. Forks: call it while there is one thread.
    """
    clouds: dict[str, Cloud] = {}
    for name in names:
        module = importlib.import_module(_provider(name).module)
        clouds[name] = module.make(
            CloudContext(
                home=home,
                master_url=master_url,
                file=(files or {}).get(name),
                hidden=hidden,
                catalogue=catalogue if catalogue is not None else packaged(),
            )
        )
    return clouds


def _provider(name: str) -> Provider:
    provider = PROVIDERS.get(name)
    if provider is None:
        raise UnknownCloud(f"cloud {name!r} is not supported; supported: {', '.join(PROVIDERS)}")
    if provider.sdk and not _is_installed(provider.sdk):
        raise UnknownCloud(
            f"cloud {name!r} needs {provider.sdk}, which is not installed; "
            f"pip install 'spothop[{provider.extra}]'"
        )
    return provider


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even the folder that it is in
        return False
