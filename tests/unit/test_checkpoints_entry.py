"""Chain entries and keys: the codecs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spothop.checkpoints import Entry, FileRecord
from spothop.checkpoints import keys as layout
from spothop.storage import FolderStore, StorageError, UnsafePath
from spothop.wire import SaveKind
from support.examples import examples

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
RECORDS = st.builds(
    FileRecord,
    path=st.text(),
    size=st.integers(0, 10**15),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    key=st.text(),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.builds(
    Entry,
    n=st.integers(1, 99_999_999),
    attempt=st.integers(1, 10**6),
    id=st.text(),
    fence=st.booleans(),
    step=st.none() | st.integers(0, 10**12),
    kind=st.none() | st.sampled_from(SaveKind),
    files=st.lists(RECORDS, max_size=3).map(tuple),
    parent=st.none() | st.integers(1, 99_999_999),
    root=st.text(),
    is_dir=st.booleans(),
    meta=st.dictionaries(st.text(), VALUES, max_size=3),
)


@examples(100)
@given(ENTRIES)
def test_an_entry_survives_its_json(entry: Entry) -> None:
    assert Entry.from_json(entry.to_json()) == entry
    assert Entry.from_json(entry.to_json().encode()) == entry


def test_a_name_that_is_no_utf8_survives() -> None:
    record = FileRecord("\udcff.pt", 1, "0", layout.quote("\udcff.pt"))
    entry = Entry(n=1, attempt=1, id="i", files=(record,))
    assert Entry.from_json(entry.to_json()) == entry
    assert record.key == "~FF.pt"


@examples(100)
@given(st.binary() | st.text().map(str.encode))
def test_garbage_is_a_value_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the text differs with the garbage
        Entry.from_json(data)


@pytest.mark.parametrize(
    "change", [{"v": 0}, {"n": None}, {"kind": "weekly"}, {"files": [{}]}, {"attempt": "one"}]
)
def test_what_is_not_ours_is_refused(change: dict[str, object]) -> None:
    data = {**json.loads(Entry(n=1, attempt=1, id="i").to_json()), **change}
    with pytest.raises(ValueError, match=r"format 0|: "):
        Entry.from_json(json.dumps(data))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="deep"):
        Entry.from_json("[" * 200_000)


@examples(100)
@given(st.lists(NAMES.filter(lambda name: name not in {".", ".."}), min_size=1).map("/".join))
def test_every_path_has_a_plain_key_of_its_own(path: str) -> None:
    key = layout.quote(path)
    assert layout.unquote(key) == path
    assert not set(key) & set(" #%?*\\:\"'<>|\n\t")


@examples(30)
@example(name=".spothop-tmp-1")
@given(NAMES.filter(lambda name: name not in {".", ".."} and len(layout.quote(name)) < 80))
def test_quoted_names_work_in_a_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    store = FolderStore(tmp_path_factory.mktemp("store"))
    store.put(f"d/{layout.quote(name)}", b"x")
    assert [layout.unquote(info.key[2:]) for info in store.scan("d")] == [name]
    store.discard_partial("")
    assert len(list(store.scan("d"))) == 1


def test_keys_of_the_architecture() -> None:
    assert layout.chain_key("j-1", 12) == "jobs/j-1/chain/00000012.json"
    assert layout.chain_number("jobs/j-1/chain/00000012.json") == 12
    assert layout.chain_number("jobs/j-1/chain/notes.txt") is None
    folder = layout.data_folder("j-1", 120, 3, SaveKind.EMERGENCY)
    assert folder == "jobs/j-1/data/120-3-emergency"
    assert layout.parse_data_folder("120-3-emergency") == (120, 3, SaveKind.EMERGENCY)
    assert layout.parse_data_folder("120-3-weekly") is None
    assert layout.parse_data_folder("mine") is None


@pytest.mark.parametrize("job", ["", "..", "a/b", ".hidden", "a b", "j\n"])
def test_a_job_id_must_be_one_segment(job: str) -> None:
    with pytest.raises(StorageError, match="no job id"):
        layout.job_prefix(job)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../../b", "a//b", ".", "a/.", "a\0b"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(UnsafePath):
        layout.inside(tmp_path, path)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "link").symlink_to(tmp_path)
    with pytest.raises(UnsafePath, match="through a link"):
        layout.inside(tmp_path / "target", "link/file")
    assert layout.inside(tmp_path / "target", "a/b") == tmp_path / "target" / "a" / "b"


@pytest.mark.parametrize("key", ["a", "a/b.c", "a/..b", "a.", "~41"])
def test_possible_keys(key: str) -> None:
    assert layout.is_key(key)


@pytest.mark.parametrize(
    "key", ["", "a//b", "/a", "a/", "a/./b", "a/../b", "..", "../a", ".", "a\0b"]
)
def test_impossible_keys(key: str) -> None:
    assert not layout.is_key(key)
