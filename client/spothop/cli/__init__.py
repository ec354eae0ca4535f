"""The command line: `spothop --help`. Errors go to stderr as `error: ...` and `hint: ...`.

Exit codes: 0 success; 1 failure, or a followed job that failed; 2 wrong usage; 3 a followed job was
cancelled; 4 it was paused; 130 Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
from typing import cast

import typer

from spothop.cli.app import app
from spothop.cli.session import Session, report

__all__ = ["main", "run"]

# Typer exports only this child of its usage and command errors, whichever click is beneath it.
_UsageError, _CommandError = cast("list[type[Exception]]", typer.BadParameter.__mro__[1:3])


def main() -> None:
    """The entry point of the `spothop` program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name or a log may hold what it cannot
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(run(sys.argv[1:]))
    except BrokenPipeError:
        # The reader of a pipe went away; Python's flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def run(arguments: list[str], session: Session | None = None) -> int:
    """Run one command; never raises for what a user or the network did. Returns the exit code."""
    try:
        session = session or Session()
        code = app(arguments or ["--help"], prog_name="spothop", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else 0
    except typer.Exit as leave:
        return leave.exit_code
    except (typer.Abort, KeyboardInterrupt):
        report("interrupted")
        return 130
    except BrokenPipeError:
        raise
    except _CommandError as error:
        return _usage(error)
    except Exception as error:  # known, or a bug: both are told in words
        if not report_known(error):
            _report_bug(error)
        return 1


def _usage(error: Exception) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "spothop"
    report(message, f"`{command} --help` shows how")
    return 2 if isinstance(error, _UsageError) else 1


def _report_bug(error: Exception) -> None:
    """The traceback goes to a file: it helps only whoever fixes the bug."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="spothop-", suffix=".trace", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        traceback.print_exception(error, file=file)
    text = f"unexpected {type(error).__name__}: {error}"
    report(text, f"this is a bug of spothop: please report it, with {file.name}")


def report_known(error: Exception) -> bool:
    """Print an error of ours; False for one that is a bug."""
    from spothop.jobfile import JobFileError
    from spothop.sdk.bundle import BundleError
    from spothop.sdk.errors import ClientError

    if isinstance(error, JobFileError):
        for problem in error.problems:
            report(str(problem), problem.hint)
        return True
    if isinstance(error, (BundleError, ClientError)):
        report(error.message, error.hint)
        return True
    if isinstance(error, OSError):
        report(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        return True
    return False
