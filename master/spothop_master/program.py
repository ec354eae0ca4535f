"""The master's program: read the settings, check everything, then serve."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from spothop.catalog.table import BadCatalogue
from spothop.catalog.table import read as read_catalogue
from spothop.chaos import Chaos
from spothop.storageoptions import without_password
from spothop.tls import fingerprint
from spothop.wire import StorageSpec
from spothop_master import chaos, files, front_door, home, rekeying, serving, shared_authority
from spothop_master.app import create_app
from spothop_master.clock import utc_now
from spothop_master.clouds.configuration import ConfigError
from spothop_master.clouds.registry import UnknownCloud, make_clouds
from spothop_master.first_start import first_start, open_keys
from spothop_master.keys import KeyFileError, Keys
from spothop_master.log_limit import LogLimit
from spothop_master.services import Services
from spothop_master.settings import MasterSettings, SettingsError, read_settings
from spothop_master.store import installation
from spothop_master.store.db import Database
from spothop_master.store.dialects import DatabaseRefused, in_words, shown
from spothop_master.tls import TlsError

PRIVATE = 0o077
"""The umask: the database holds every job's `env`, whatever mode the home folder has."""

GRACEFUL_S = 5
"""For requests under way when the master is asked to end."""


KEEP_ALIVE_S = 75
"""A connection that rests stays open so long: above the interval of the agents' syncs, or each sync
would open one anew, and a call that meets the closing would fail."""


class CannotStart(Exception):
    """Nothing was started; the message says why and the way out."""


CANNOT_START = (
    SettingsError,
    CannotStart,
    home.HomeError,
    ConfigError,
    UnknownCloud,
    BadCatalogue,
    serving.PublicRefused,
    TlsError,
)


class Server(uvicorn.Server):
    """Ends long polls first, and exits with status 0 after SIGTERM and SIGINT."""

    def __init__(
        self,
        config: uvicorn.Config,
        services: Services,
        doors: Collection[front_door.FrontDoor],
    ) -> None:
        super().__init__(config)
        self._services = services
        self._doors = doors

    async def main_loop(self) -> None:
        besides = [asyncio.ensure_future(front_door.watch(*self._doors))]
        if self.config.ssl is not None:
            renewal = serving.keep_renewed(self._services.settings, self.config.ssl, utc_now)
            besides.append(asyncio.ensure_future(renewal))
        try:
            await super().main_loop()
        finally:
            for task in besides:
                task.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.stop()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn's own raises the signal again at the end, which would show as a failure
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _file_of(cloud: str, docs: str = "") -> Any:
    """The option that names a cloud's configuration file."""
    where = f" ({docs})" if docs else ""
    return typer.Option(help=f"Configuration file of the {cloud} cloud{where}.")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    home_folder: Annotated[
        Path | None, typer.Option("--home", help="Folder for database, logs and bundles.")
    ] = None,
    local_cloud: Annotated[Path | None, _file_of("local")] = None,
    clouds: Annotated[
        str | None,
        typer.Option(help="Those to work with, separated by commas: local, aws, azure, gcp."),
    ] = None,
    aws_cloud: Annotated[Path | None, _file_of("AWS", docs="docs/aws.md")] = None,
    azure_cloud: Annotated[Path | None, _file_of("Azure", docs="docs/azure.md")] = None,
    gcp_cloud: Annotated[Path | None, _file_of("GCP", docs="docs/gcp.md")] = None,
    public_url: Annotated[
        str | None, typer.Option(help="Base URL at which users and VMs reach us.")
    ] = None,
    agents_port: Annotated[int | None, typer.Option(help="Another port, for agents alone.")] = None,
    agents_url: Annotated[
        str | None, typer.Option(help="Base URL at which VMs reach that port.")
    ] = None,
    database_url: Annotated[str | None, typer.Option(help="SQLAlchemy URL.")] = None,
    storage_url: Annotated[str | None, typer.Option(help="Where checkpoints go.")] = None,
    tls: Annotated[
        str | None,
        typer.Option(
            metavar="auto", help="Serve TLS with a certificate authority of the master's own."
        ),
    ] = None,
    insecure_public: Annotated[
        bool | None,
        typer.Option(
            "--insecure-public", help="Listen on an address that others reach, without TLS."
        ),
    ] = None,
    rotate_key: Annotated[
        bool,
        typer.Option(
            "--rotate-key", help="Make a new master key, encrypt everything with it, and end."
        ),
    ] = False,
    forget_key: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Give up what this lost master key encrypted, and end."),
    ] = None,
) -> None:
    """Run the spothop master. Settings come from SPOTHOP_MASTER_* too; options win."""
    os.umask(PRIVATE)
    _log_to_stderr()
    options = {
        "host": host,
        "port": port,
        "home": home_folder,
        "local_cloud": local_cloud,
        "clouds": clouds,
        "aws_cloud": aws_cloud,
        "gcp_cloud": gcp_cloud,
        "azure_cloud": azure_cloud,
        "public_url": public_url,
        "agents_port": agents_port,
        "agents_url": agents_url,
        "database_url": database_url,
        "storage_url": storage_url,
        "tls": tls,
        "insecure_public": insecure_public,
    }
    with _told_why_not():
        settings = read_settings(os.environ, options)  # noqa: TID251  the one reader of settings
        if rotate_key or forget_key is not None:
            told = rekey(settings, forget_key)
            typer.echo(told)
        else:
            run(settings)


@contextmanager
def _told_why_not() -> Generator[None, None, None]:
    """Raises typer.Exit(2), once the user is told, for what says that nothing can start."""
    try:
        yield
    except CANNOT_START as error:
        typer.echo(f"spothop master cannot start: {error}", err=True)
        raise typer.Exit(2) from None


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    for quiet in ("apscheduler", "httpx", "alembic", "azure"):
        logging.getLogger(quiet).setLevel(logging.WARNING)


def rekey(settings: MasterSettings, forget: str | None) -> str:
    """Rotate the master key, or forget one; what to tell. Raises `CannotStart`, `HomeError`."""
    try:
        return rekeying.forget(settings, forget) if forget else rekeying.rotate(settings)
    except KeyFileError as error:
        raise CannotStart(str(error)) from None
    except (DatabaseRefused, SQLAlchemyError) as error:
        raise _bad_database(settings, error) from None


def run(settings: MasterSettings) -> None:
    """Everything that can be wrong is checked before anything starts."""
    serving.refuse_public(settings)
    if not settings.loops and settings.database_url.startswith("sqlite"):
        raise CannotStart(
            "loops = false: nobody else can look after the jobs of a SQLite database; remove "
            "SPOTHOP_MASTER_LOOPS, or give the masters a PostgreSQL (database_url)"
        )
    with ExitStack() as stack:
        ports = [("port", settings.port)]
        if settings.agents_port is not None:
            ports.append(("agents_port", settings.agents_port))
        listeners = [
            stack.enter_context(listen(settings.host, port, name=name)) for name, port in ports
        ]
        stack.enter_context(home.prepare(settings.home))
        settings = settings.model_copy(update={"owner": settle_owner(settings)})
        clouds = make_clouds(
            settings.clouds,
            home=settings.home,
            master_url=settings.agents_url,
            files={
                "local": settings.local_cloud,
                "aws": settings.aws_cloud,
                "gcp": settings.gcp_cloud,
                "azure": settings.azure_cloud,
            },
            hidden=(settings.files,),
            catalogue=read_catalogue(settings.catalog),
        )
        serving.warn_unreachable(settings, clouds)
        share_authority(settings)
        open_files(settings)
        ca = serving.authority(settings, utc_now())
        app = create_app(settings, clouds, chaos=plan_chaos(settings), ca=ca)
        open_database(settings, app.state.services)
        open_storage(settings.storage_url)
        app.state.announce = lambda: announce(settings, ca)
        make_server(app, serving.context(settings, utc_now())).run(sockets=listeners)


def make_server(app: FastAPI, tls: ssl.SSLContext | None = None) -> Server:
    """What serves the application of a master."""
    agents_port = app.state.services.settings.agents_port
    ports = [agents_port] if agents_port is not None else []
    limits = front_door.limits_for(front_door.raise_file_limit(), doors=1 + len(ports))
    door, others = front_door.FrontDoor(limits), {p: front_door.FrontDoor(limits) for p in ports}
    config = uvicorn.Config(
        app,
        http=partial(front_door.WatchedConnection, door=door, others=others),  # type: ignore[arg-type]
        log_config=None,  # its lines go where ours go
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
    )
    config.load()
    config.ssl = tls
    return Server(config, app.state.services, [door, *others.values()])


def plan_chaos(settings: MasterSettings) -> Chaos:
    """Raises `CannotStart`."""
    try:
        return chaos.from_text(settings.chaos, settings.home)
    except ValueError as error:
        raise CannotStart(f"chaos = {settings.chaos}: {error}") from None


def settle_owner(settings: MasterSettings) -> str:
    """The name of the installation, which the database and this home agree on. Raises `HomeError`
    and `CannotStart`."""
    of_home = home.known_owner(settings.home)
    try:
        db = Database(settings.database_url)
    except DatabaseRefused as error:
        raise _bad_database(settings, error) from None
    try:
        db.migrate()
        with db.begin() as session:
            found = installation.settle(
                session,
                setting=settings.owner,
                of_home=of_home,
                new_name=home.new_owner,
                home=str(settings.home),
                now=utc_now(),
            ).name
    except installation.WrongInstallation as error:
        raise CannotStart(str(error)) from None
    except (DatabaseRefused, SQLAlchemyError) as error:
        raise _bad_database(settings, error) from None
    finally:
        db.close()
    if of_home is None:
        home.keep_owner(settings.home, found)
    return found


def share_authority(settings: MasterSettings) -> None:
    """Masters of one PostgreSQL with TLS of their own have one authority. Raises `CannotStart`."""
    if settings.tls != "auto":
        return
    keys = Keys(settings.key_file)
    db = Database(settings.database_url, keys)
    try:
        if not db.single_master:
            open_keys(db, keys)
            shared_authority.share(db, settings.home / "tls", now=utc_now())
    except KeyFileError as error:
        raise CannotStart(str(error)) from None
    except SQLAlchemyError as error:
        raise _bad_database(settings, error) from None
    finally:
        db.close()


def open_files(settings: MasterSettings) -> None:
    """See that the bucket of bundles and logs can be used by this master. Raises `CannotStart`."""
    if not settings.files_url:
        return
    from spothop.storage import StorageError, open_store, probe

    try:
        probe(open_store(files.spec_of(settings.files_url)))
    except StorageError as error:
        raise CannotStart(
            f"files = {without_password(settings.files_url)}: {without_password(error.message)}; "
            f"{error.hint or 'give this master the right to read, write, list and delete there'}"
        ) from None


def open_database(settings: MasterSettings, services: Services) -> None:
    """Migrate it before anything is served. Raises `CannotStart`."""
    try:
        first_start(services)
    except KeyFileError as error:
        raise CannotStart(str(error)) from None
    except (DatabaseRefused, SQLAlchemyError) as error:
        raise _bad_database(settings, error) from None


def _bad_database(settings: MasterSettings, error: Exception) -> CannotStart:
    """Both say why and the way out, and show no password."""
    reason = in_words(error) if isinstance(error, SQLAlchemyError) else str(error)
    return CannotStart(f"database_url = {shown(settings.database_url)}: {reason}")


def open_storage(url: str) -> None:
    """See that the storage of jobs that name none can be used. Raises `CannotStart`.

    A folder is tried out; a bucket is not asked: the VMs have their own credentials for it.
    """
    from spothop.storage import StorageError, open_store, probe

    try:
        store = open_store(StorageSpec(url=url))
        if urlsplit(url).scheme == "file":
            probe(store)
    except StorageError as error:
        raise CannotStart(
            f"storage_url = {without_password(url)}: {without_password(error.message)}; "
            f"{error.hint or 'name a folder that can be written, or a bucket'}"
        ) from None


def listen(host: str, port: int, *, name: str = "port") -> socket.socket:
    """The listening socket. Raises `CannotStart` when the address is taken or not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # with its protocol named: asyncio turns Nagle's algorithm off for such sockets only, and
        # with it every answer in two parts waits 40 ms for the client's delayed acknowledgement
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise CannotStart(f"host = {host}: {error.strerror}; give an address of ours") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise CannotStart(
            f"{name} = {port}: cannot listen on {host} ({error.strerror}); "
            f"stop what listens there, or choose another --{name.replace('_', '-')}"
        ) from None
    return listener


def announce(settings: MasterSettings, ca: str = "") -> None:
    """Where it is, how to get in, and what to try."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{settings.port}" if settings.tls == "off" else settings.public_url
    token = settings.home / home.ADMIN_TOKEN
    told, given = f"spothop master: {url}\n  admin token: {token}\n", ""
    if ca:
        vouches = fingerprint(ca)
        told += f"  certificate authority: {vouches}\n"
        told += f"    for browsers: {url}/api/v1/ca, once its fingerprint is this one\n"
        given = f" SPOTHOP_CA={vouches}"
    typer.echo(
        f"{told}  try: export SPOTHOP_URL={url}{given} SPOTHOP_TOKEN=$(cat {token})\n"
        f"       spothop jobs"
    )
    sys.stdout.flush()
