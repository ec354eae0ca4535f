"""What others have written, on a terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.cli.consoles import OurConsole
from spothop.cli.harmless import HarmlessLog, harmless
from spothop.cli.text import print_facts, print_table

TITLE = "\x1b]0;owned\x07"
AWAY = "\x1b[2J\x1b[1;1H"


def test_what_controls_a_terminal_is_shown_as_a_picture() -> None:
    assert harmless(f"a{AWAY}b\x7f\x9b31m") == "a\u241b[2J\u241b[1;1Hb\u2421\ufffd31m"
    assert harmless("pay\u202eexe.txt") == "pay\ufffdexe.txt"
    assert harmless("two\n\tlines, \u00e9, \U0001f600") == "two\n\tlines, \u00e9, \U0001f600"


@given(st.text())
def test_as_many_characters_none_of_which_controls(text: str) -> None:
    shown = harmless(text)
    assert len(shown) == len(text)
    assert not {c for c in shown if c < " " and c not in "\n\t"}
    assert harmless(shown) == shown


def test_of_a_logs_escapes_colours_stay() -> None:
    log = HarmlessLog()
    shown = log.feed(f"\x1b[31mred\x1b[0m {TITLE}{AWAY}\r\nover\rwritten\n") + log.end()
    assert shown == "\x1b[31mred\x1b[0m \u241b]0;owned\u2407\u241b[2J\u241b[1;1H\nover\nwritten\n"


@given(st.text(alphabet="\x1b[]0;1mJ\r\n a\u202e"), st.data())
def test_pieces_of_a_log_may_end_anywhere(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    whole, parts = HarmlessLog(), HarmlessLog()
    expected = whole.feed(text) + whole.end()
    assert parts.feed(text[:cut]) + parts.feed(text[cut:]) + parts.end() == expected


@pytest.mark.parametrize("terminal", [True, False])
def test_names_and_events_on_a_console(terminal: bool) -> None:
    file = io.StringIO()
    console = OurConsole(file=file, force_terminal=terminal, color_system=None, width=80)
    print_facts(console, [("reason", f"it {TITLE}ended")])
    print_table(console, ("NAME", "N"), [(f"x{AWAY}", "1")])
    console.print(f"[b]{AWAY}", soft_wrap=True)
    shown = file.getvalue()
    assert "[b]" in shown
    assert ("\x1b" in shown) is not terminal
    assert ("\u241b" in shown) is terminal


def test_raw_passes_all() -> None:
    file = io.StringIO()
    OurConsole(file=file, force_terminal=True, color_system=None, raw=True).print(AWAY)
    assert AWAY in file.getvalue()
