"""`spothop master migrate-database`, `backup` and `restore`: what is done to a master's database
beside its service."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from spothop.figures import size
from spothop_master import archive, home
from spothop_master.settings import MasterSettings, SettingsError, read_settings
from spothop_master.store import copying, dialects
from spothop_master.store.db import Database

PRIVATE = 0o077

app = typer.Typer(add_completion=False, no_args_is_help=True)

Home = Annotated[Path | None, typer.Option("--home", help="The master's home folder.")]
Url = Annotated[
    str | None,
    typer.Option("--database-url", help="Of its database, where it is not SQLite in its home."),
]


@app.command()
def migrate_database(
    target: Annotated[
        str, typer.Option("--to", envvar="SPOTHOP_TARGET_DATABASE_URL", help="URL of the new one.")
    ],
    home_folder: Home = None,
    database_url: Url = None,
) -> None:
    """Copy the database of a master that is stopped into an empty one, such as SQLite's into
    PostgreSQL. Both stay; start the master with the new one's URL then."""

    def act(settings: MasterSettings) -> str:
        with home.prepare(settings.home):
            source, other = Database(settings.database_url), Database(target)
            try:
                copying.refuse_masters(source)
                dialects.check(other.engine)
                copying.refuse_masters(other)
                count = copying.copy(source, other, tell=_progress())
            finally:
                source.close()
                other.close()
        return (
            f"{count} rows copied to {dialects.shown(target)}; start the master with that as "
            "SPOTHOP_MASTER_DATABASE_URL, and keep its home: keys, bundles and logs are there. "
            f"Start none with {dialects.shown(settings.database_url)} any more"
        )

    _do(act, home_folder, database_url)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The archive to write; it must not be there.")],
    home_folder: Home = None,
    database_url: Url = None,
) -> None:
    """Write the database, keys, bundles and logs into one file, while the master runs. The master
    key is in it: keep it where nobody else reads it."""

    def act(settings: MasterSettings) -> str:
        return f"{file}: {size(archive.save(settings, file))}; the master key is in it"

    _do(act, home_folder, database_url)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="An archive of `spothop master backup`.")],
    home_folder: Home = None,
    database_url: Url = None,
) -> None:
    """Put a back-up into a home without a database, on this machine or another one. VMs that were
    launched after it was made are shown by `spothop strays`, and held until an admin ends them."""

    def act(settings: MasterSettings) -> str:
        with home.prepare(settings.home):
            count = archive.restore(settings, file)
        return f"{count} files restored into {settings.home}; start the master"

    _do(act, home_folder, database_url)


WORDS = frozenset(
    str(command.name or command.callback.__name__.replace("_", "-"))  # type: ignore[union-attr]
    for command in app.registered_commands
)


def asked_for(arguments: Sequence[str]) -> list[str] | None:
    """The arguments of one of these commands, its name first; None: the master itself is asked for.
    `spothop master` puts `--home FOLDER` before whatever it was given."""
    at = 2 if arguments[:1] == ["--home"] else 0
    if len(arguments) <= at or arguments[at] not in WORDS:
        return None
    given = "--home" in arguments[at + 1 :]
    return [*arguments[at:], *([] if given else arguments[:at])]


def _do(
    act: Callable[[MasterSettings], str], home_folder: Path | None, database_url: str | None
) -> None:
    os.umask(PRIVATE)
    options = {"home": home_folder, "database_url": database_url}
    settings: MasterSettings | None = None
    try:
        settings = read_settings(os.environ, options)  # noqa: TID251  the reader of settings
        typer.echo(act(settings))
    except SQLAlchemyError as error:
        _fail(dialects.in_words(error))
    except (
        SettingsError,
        home.HomeError,
        archive.BackupError,
        dialects.DatabaseRefused,
        OSError,
    ) as error:
        _fail(str(error))


def _fail(why: str) -> None:
    typer.echo(f"error: {why}", err=True)
    raise typer.Exit(2)


def _progress() -> copying.Tell:
    """On a terminal one line, which each batch writes anew."""
    shown = sys.stderr.isatty()

    def tell(table: str, rows: int) -> None:
        if shown:
            typer.echo(f"\r\033[K{table}: {rows} rows", nl=False, err=True)

    return tell
