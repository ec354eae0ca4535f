"""What a command gets from outside: settings, the connection, terminal or not, the time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from spothop.cli.harmless import harmless
from spothop.sdk.settings import ClientSettings, read_settings

if TYPE_CHECKING:
    import httpx
    from rich.console import Console

    from spothop.sdk.client import Client


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _become(command: list[str]) -> None:
    sys.stdout.flush()
    os.execv(command[0], command)


@dataclass(kw_only=True)
class Session:
    """One run of the CLI; tests make their own with a transport and a clock."""

    settings: ClientSettings = field(default_factory=read_settings)
    transport: httpx.BaseTransport | None = None
    now: Callable[[], datetime] = _now
    sleep: Callable[[float], None] = time.sleep
    terminal: bool = field(default_factory=lambda: sys.stdout.isatty())
    can_ask: bool = field(default_factory=lambda: sys.stdin.isatty())
    become: Callable[[list[str]], None] = _become

    def client(self) -> Client:
        from spothop.sdk import authority
        from spothop.sdk.client import Client

        settings, transport = self.settings, self.transport
        ca = authority.find(settings.url, settings.ca, settings.home, transport=transport)
        return Client(settings.url, settings.token, ca=ca, transport=transport, sleep=self.sleep)

    def console(self, *, raw: bool = False) -> Console:
        """`raw`: characters that control a terminal are passed on to it."""
        from spothop.cli.consoles import OurConsole

        return OurConsole(raw=raw)

    def say(self, text: str) -> None:
        """A sentence on the standard output: a line for programs, wrapped at words for people."""
        if not self.terminal:
            typer.echo(text)
            return
        from spothop.cli.text import print_text

        print_text(self.console(), text)

    def line(self, text: str) -> None:
        """One line on the standard output, such as a path: never wrapped."""
        typer.echo(harmless(text) if self.terminal else text)


def session_of(context: typer.Context) -> Session:
    session = context.find_root().obj
    assert isinstance(session, Session)
    return session


def report(error: str, hint: str = "") -> None:
    """An error as every command prints it."""
    aside(f"error: {error}")
    if hint:
        aside(f"hint: {hint}")


def aside(text: str) -> None:
    """A sentence on the standard error: a line for programs, wrapped at words for people."""
    if not sys.stderr.isatty():
        typer.echo(text, err=True)
        return
    from spothop.cli.consoles import OurConsole
    from spothop.cli.text import print_text

    print_text(OurConsole(stderr=True), text)
