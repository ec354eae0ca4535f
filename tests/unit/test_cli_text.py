"""Ages, log lines and errors as people read them."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from spothop.cli import run
from spothop.cli.session import Session
from spothop.cli.text import age, print_facts, print_table
from spothop.cli.views import log_line
from spothop.eventlog import EventFilter
from spothop.sdk.settings import ClientSettings
from spothop.wire import EventView

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)


def test_an_age_is_never_negative() -> None:
    assert age(NOW - timedelta(hours=2), now=NOW) == "2 h"
    assert age(NOW + timedelta(hours=1), now=NOW) == "0 s"  # of clocks that differ


def test_a_log_line_cannot_move_the_cursor() -> None:
    assert log_line("10%\r50%\r100%\r").plain == "100%"
    assert log_line("\x1b[31mred\x1b[0m \x1b[2J\x07!").plain == "red !"


def event(
    text: str, *, attempt: int | None = None, vm: str | None = None, at: datetime = NOW
) -> EventView:
    return EventView(id=1, at=at, job="j", vm=vm, attempt=attempt, kind="x", text=text, data={})


def test_only_what_says_the_same_of_the_same_moment_and_thing_is_no_news() -> None:
    news = EventFilter()
    later = NOW + timedelta(seconds=1)
    given = [
        (event("a", attempt=1, vm="vm-1"), True),
        (event("a", attempt=1, vm="vm-1"), False),
        (event("a", vm="vm-1"), False),
        (event("a"), False),
        (event("b"), True),
        (event("a", attempt=2, vm="vm-2"), True),
        (event("a", vm="vm-2"), False),
        (event("", attempt=1), True),
        (event("", attempt=1), True),  # shown as its kind
        (event("a", at=later), True),
        (event("a"), True),
    ]
    assert [news.is_news(e) for e, _ in given] == [wanted for _, wanted in given]


@pytest.mark.parametrize(("option", "lines"), [([], 1), (["--json"], 4)])
def test_a_change_is_one_line_and_all_its_rows_as_json(
    option: list[str], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(1, "vm-1"), (None, "vm-1"), (1, "vm-1"), (None, None)]
    events = [event("a notice", attempt=a, vm=vm).model_dump(mode="json") for a, vm in rows]
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=events))
    session = Session(settings=ClientSettings(token="t"), transport=transport)
    assert run(["events", "j", *option], session) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == lines
    if not option:
        assert shown[0].endswith(" [1] a notice")
    else:
        assert json.loads(shown[3])["attempt"] is None


def test_a_bug_is_told_in_words_and_its_trace_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = ClientSettings(token="t", master_home=tmp_path)
    session = Session(settings=settings, transport=httpx.MockTransport(broken))
    assert run(["jobs"], session) == 1
    err = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: a bug" in err
    assert "Traceback" not in err
    (trace,) = tmp_path.glob("spothop-*.trace")
    assert trace.name in err.replace("\n", "")
    assert "Traceback" in trace.read_text()


# --- tables -------------------------------------------------------------------------------------


def shown(width: int, rows: list[tuple[str, ...]], **options: Any) -> list[str]:
    """A table of NAME, N and NOTE as the lines of a terminal of this width."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_table(console, ("NAME", "N", "NOTE"), rows, right=("N",), **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


ROWS = [("first-name", "1,200", "a few words"), ("second", "7", "-")]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (30, ["NAME            N  NOTE", "first-name  1,200  a few words", "second          7  -"]),
        (
            29,
            [
                "NAME            N",
                "  NOTE",
                "first-name  1,200",
                "  a few words",
                "second          7",
            ],
        ),
        (
            16,
            [
                "NAME", "      N", "  NOTE",
                "first-name", "  1,200", "  a few words",
                "second", "      7",
            ],
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_moves_to_a_line_of_its_own(width: int, lines: list[str]) -> None:
    assert shown(width, ROWS, under=("NOTE",)) == lines


def test_what_cannot_move_is_folded() -> None:
    assert shown(26, [("a", "1", "a note of some more words, and more")]) == [
        "NAME  N  NOTE",
        "a     1  a note of some",
        "         more words, and",
        "         more",
    ]


def test_figures_move_before_a_word_or_a_figure_is_broken() -> None:
    console = Console(width=27, file=io.StringIO(), color_system=None)
    columns, row = ("JOB", "STATE", "PREEMPTED", "AGE"), ("gpt-1", "preparing", "12x", "4 min 42 s")
    print_table(console, columns, [row], right=columns[2:])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "JOB    STATE      PREEMPTED",
        "  AGE",
        "gpt-1  preparing        12x",
        "  4 min 42 s",
    ]


@given(
    st.integers(20, 90),
    st.lists(
        st.tuples(*[st.text("ab \u4e2d/-", max_size=60).map(str.strip)] * 3), min_size=1, max_size=4
    ),
    st.sampled_from([(), ("NOTE",), ("NOTE", "N")]),
)
def test_no_table_is_wider_than_its_terminal_or_ends_in_blanks(
    width: int, rows: list[tuple[str, ...]], under: tuple[str, ...]
) -> None:
    for line in shown(width, rows, under=under):
        assert cell_len(line) <= width
        assert line == line.rstrip()


def test_facts_are_wrapped_beside_their_names() -> None:
    console = Console(width=20, file=io.StringIO(), color_system=None)
    print_facts(console, [("state", "running: all is well"), ("url", "s3://" + "b" * 20)])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "state  running: all",
        "       is well",
        "url    s3://bbbbbbbb",
        "       bbbbbbbbbbbb",
    ]
