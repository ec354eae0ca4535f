"""A tree that is packed and unpacked is the same tree; what was damaged on the way is noticed."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore.store
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spothop.storage import ObjectExists, RemoteStore
from spothop_agent.environment.index import Damaged, decoded, encoded
from spothop_agent.environment.manifest import Manifest
from spothop_agent.environment.shelf import KEEP_S, Shelf
from spothop_agent.environment.tree import Item, Kind, NotKept, snapshot

KEY, OTHER = "a" * 64, "b" * 64
PART = 64


class Shop:
    """A store in memory, and the shelf of one job in it, with tiny parts."""

    def __init__(self) -> None:
        self.store = RemoteStore(obstore.store.MemoryStore(), "memory:///")
        self.shelf = Shelf(self.store, "jobs/job-1", part=PART)

    def pack(
        self,
        root: Path,
        *folders: str,
        key: str = KEY,
        attempt: int = 1,
        made: float = 0.0,
        most_bytes: int = 10**9,
    ) -> Manifest:
        items = snapshot(root, folders, most_bytes=most_bytes)
        keeping = self.shelf.begin(root, items, attempt)
        keeping.send(lambda: None)
        self.bound = keeping.packing.bound
        return keeping.manifest(key, folders, setup_s=1.0, made=made)

    def keep(self, root: Path, *folders: str, **changes: Any) -> Manifest:
        manifest = self.pack(root, *folders, **changes)
        assert self.shelf.publish(manifest)
        return manifest

    def restore(self, root: Path, key: str = KEY) -> Manifest:
        found = self.shelf.find([key])
        assert found is not None
        self.shelf.unpack(found, root, still_wanted=lambda: None).place()
        return found

    def keys(self) -> list[str]:
        return sorted(info.key for info in self.store.scan(""))


def seen(root: Path, *folders: str) -> dict[str, tuple[object, ...]]:
    """Everything that counts of a tree: kinds, modes, times, contents, links, names of one file."""
    found: dict[str, tuple[object, ...]] = {}
    inodes: dict[int, str] = {}
    paths = [path for folder in folders for path in [root / folder, *(root / folder).rglob("*")]]
    for path in sorted(paths):
        status = path.lstat()
        name = str(path.relative_to(root))
        content: object = ""
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        mode = 0 if stat.S_ISLNK(status.st_mode) else status.st_mode
        same = inodes.setdefault(status.st_ino, name)
        found[name] = (stat.S_IFMT(status.st_mode), mode, status.st_mtime_ns, content, same)
    return found


names = st.sampled_from(
    ["a", "b", "lib", "x.py", "caf\u00e9", "a b", "new\nline", ".hidden", "~", "\udcff"]
)
times = st.integers(0, 2**33 * 10**9)
leaves = st.one_of(
    st.tuples(
        st.just("file"), st.binary(max_size=200), st.sampled_from([0o644, 0o755, 0o600]), times
    ),
    st.tuples(st.just("zeros"), st.integers(0, 400), st.just(0o644), times),
    st.tuples(
        st.just("link"), st.sampled_from(["a", "../x", "/usr/bin/python3"]), st.just(0), times
    ),
    st.tuples(st.just("same"), st.none(), st.just(0), times),
)
trees = st.recursive(
    leaves,
    lambda below: st.tuples(st.just("dir"), st.dictionaries(names, below, max_size=5), times),
)
TOP = st.dictionaries(names, trees, max_size=6)


def grow(folder: Path, below: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, what in below.items():
        path = folder / name
        if what[0] == "dir":
            grow(path, what[1])
            os.utime(path, ns=(what[2], what[2]))
            continue
        kind, content, mode, at = what
        if kind == "link":
            path.symlink_to(content)
        elif kind == "same" and files:
            os.link(files[0], path)
            continue
        else:
            path.write_bytes(content if kind == "file" else bytes(content or 0))
            path.chmod(mode or 0o644)
            files.append(path)
        os.utime(path, ns=(at, at), follow_symlinks=False)


@settings(max_examples=25, deadline=None)
@given(first=TOP, second=TOP)
def test_any_tree_is_the_same_after_packing_and_unpacking(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        grow(old / "env", first)
        grow(old / "build/deep", second)
        (new / "env").mkdir(parents=True)
        (new / "env/of the bundle").touch()
        shop = Shop()
        shop.keep(old, "env", "build/deep")
        shop.restore(new)
        assert seen(new, "env", "build/deep") == seen(old, "env", "build/deep")
        assert sorted(os.listdir(new)) == ["build", "env"]


@settings(max_examples=25, deadline=None)
@given(tree=TOP, where=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_any_byte_that_is_flipped_in_storage_is_detected(
    tree: dict[str, Any], where: int, flip: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        grow(old / "env", tree)
        (new / "env").mkdir(parents=True)
        (new / "env/before").touch()
        shop = Shop()
        shop.keep(old, "env")
        keys = shop.keys()
        key = keys[where % len(keys)]
        data = bytearray(shop.store.get(key))
        data[where % len(data)] ^= flip
        shop.store.put(key, bytes(data))
        with pytest.raises(Damaged):
            shop.restore(new)
        assert os.listdir(new) == ["env"]
        assert os.listdir(new / "env") == ["before"]
        assert shop.shelf.find([KEY]) is None  # so that it is made anew


def test_a_part_that_is_missing_is_damage(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"a": ("file", b"x" * 100, 0o644, 0)})
    shop = Shop()
    manifest = shop.keep(tmp_path, "env")
    shop.store.delete([f"jobs/job-1/env/parts/{manifest.folder}/000001"])
    with pytest.raises(Damaged, match="missing"):
        shop.restore(tmp_path)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [a_pipe, a_socket])
def test_a_special_file_is_a_reason_not_to_keep_a_tree(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    Path("env").mkdir()
    make(Path("env/x"))
    with pytest.raises(NotKept, match="pipe, a socket or a device"):
        snapshot(tmp_path, ["env"], most_bytes=100)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda root: None, "made no folder 'env'"),
        (lambda root: (root / "env").touch(), "'env' is no folder"),
        (lambda root: (root / "env").symlink_to("/usr"), "'env' is no folder"),
    ],
)
def test_what_is_no_folder_is_not_kept(
    tmp_path: Path, make: Callable[[Path], None], told: str
) -> None:
    make(tmp_path)
    with pytest.raises(NotKept, match=told):
        snapshot(tmp_path, ["env"], most_bytes=100)


def test_a_folder_behind_a_link_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "real/env").mkdir(parents=True)
    (tmp_path / "a").symlink_to("real")
    with pytest.raises(NotKept, match="behind a symbolic link"):
        snapshot(tmp_path, ["a/env"], most_bytes=100)


def test_a_tree_that_is_too_large_says_so_and_how_to_allow_it(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"a": ("file", b"x" * 101, 0o644, 0)})
    with pytest.raises(NotKept, match=r"env: more than 100 B, which is `setup_cache\.max`"):
        snapshot(tmp_path, ["env"], most_bytes=100)


def test_a_file_that_changed_since_setup_is_not_kept(tmp_path: Path) -> None:
    """Training may write into the folder; that is no result of `setup:`."""
    grow(tmp_path / "env", {"a": ("file", b"x", 0o644, 10**9), "b": ("file", b"y", 0o644, 0)})
    items = snapshot(tmp_path, ["env"], most_bytes=100)
    (tmp_path / "env/new").touch()  # what is new is left out
    Shop().shelf.begin(tmp_path, items, 1).send(lambda: None)
    (tmp_path / "env/a").write_bytes(b"z")
    os.utime(tmp_path / "env/a", ns=(10**9, 10**9))
    with pytest.raises(NotKept, match="'env/a' was changed after `setup:`"):
        Shop().shelf.begin(tmp_path, items, 1).send(lambda: None)


@pytest.mark.parametrize("before", [0, 1, PART - 9, PART - 1, PART])
def test_the_jobs_path_is_found_wherever_it_lies_in_a_file(tmp_path: Path, before: int) -> None:
    grow(tmp_path / "env", {"script": ("file", b"#" * before + os.fsencode(tmp_path), 0o755, 0)})
    shop = Shop()
    shop.pack(tmp_path, "env")
    assert shop.bound


@pytest.mark.parametrize(
    ("name", "bound"), [("env/a.py", True), ("env/__pycache__/a.pyc", False), ("env/a.pyc", True)]
)
def test_the_path_in_compiled_python_does_not_count(tmp_path: Path, name: str, bound: bool) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(os.fsencode(tmp_path))
    shop = Shop()
    shop.pack(tmp_path, "env")
    assert shop.bound is bound


def test_a_link_to_the_jobs_path_counts(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"python": ("link", f"{tmp_path}/env/real", 0, 0)})
    shop = Shop()
    shop.pack(tmp_path, "env")
    assert shop.bound


FILE = ("env/f", "f", 0o644, 0, 0, "")
FOLDER = ("env", "d", 0o755, 0, 0, "")


@pytest.mark.parametrize(
    "rows",
    [
        [FOLDER, ("env/../../x", "f", 0o644, 0, 0, "")],
        [FOLDER, ("/etc/x", "f", 0o644, 0, 0, "")],
        [FOLDER, ("other", "f", 0o644, 0, 0, "")],
        [FOLDER, ("env//x", "f", 0o644, 0, 0, "")],
        [FOLDER, ("env/x\0", "f", 0o644, 0, 0, "")],
        [FOLDER, FILE, FILE],
        [FOLDER, ("env/l", "l", 0, 0, 0, "/etc"), ("env/l/passwd", "f", 0o644, 0, 0, "")],
        [FOLDER, ("env/h", "h", 0, 0, 0, "/etc/passwd")],
        [FOLDER, ("env/h", "h", 0, 0, 0, "env")],
        [FOLDER, ("env/d", "d", 0o755, 0, 5, "")],
        [FOLDER, ("env/f", "f", 0o644, 0, -5, "")],
        [("env", "l", 0, 0, 0, "/etc")],
        [FILE],
    ],
)
def test_a_list_that_leads_out_of_its_folders_is_refused(rows: list[Any]) -> None:
    """Whoever can write into the bucket must not be able to write anywhere on a VM."""
    items = [Item(row[0], Kind(row[1]), *row[2:]) for row in rows]
    with pytest.raises(Damaged, match=r"it lists|impossible"):
        decoded(encoded(items), ["env"])


def test_a_link_in_the_code_leads_nothing_out(tmp_path: Path) -> None:
    old, new, outside = tmp_path / "old", tmp_path / "new", tmp_path / "outside"
    grow(old / "a/env", {"f": ("file", b"x", 0o644, 0)})
    new.mkdir()
    outside.mkdir()
    (new / "a").symlink_to(outside)
    shop = Shop()
    shop.keep(old, "a/env")
    with pytest.raises(Damaged, match="leads out"):
        shop.restore(new)
    assert os.listdir(outside) == []
    assert os.listdir(new) == ["a"]


def test_of_two_vms_one_wins_and_the_other_leaves_nothing(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"f": ("file", b"x" * 300, 0o644, 0)})
    shop = Shop()
    first, second = shop.pack(tmp_path, "env"), shop.pack(tmp_path, "env", attempt=2)
    assert shop.shelf.publish(first)
    assert not shop.shelf.publish(second)
    assert second.folder not in " ".join(shop.keys())
    assert shop.restore(tmp_path).folder == first.folder


def test_a_create_whose_answer_was_lost_is_no_defeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path / "env", {"f": ("file", b"x", 0o644, 0)})
    shop = Shop()
    manifest = shop.keep(tmp_path, "env")
    with pytest.raises(ObjectExists):
        shop.store.create(f"jobs/job-1/env/{KEY}.json", b"")
    assert shop.shelf.publish(manifest)
    shop.restore(tmp_path)


def test_before_the_manifest_nothing_is_there(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"f": ("file", b"x", 0o644, 0)})
    shop = Shop()
    shop.pack(tmp_path, "env")
    assert shop.shelf.find([KEY, OTHER]) is None


def test_pruning_takes_what_is_old_or_half_done_and_nothing_else(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"f": ("file", b"x", 0o644, 0)})
    shop = Shop()
    old = shop.keep(tmp_path, "env", key=KEY, made=0.0)
    half, newer = (shop.pack(tmp_path, "env", attempt=n) for n in (2, 9))
    young = shop.keep(tmp_path, "env", key=OTHER, made=10.0)
    ours = shop.keep(tmp_path, "env", key="c" * 64, attempt=3, made=0.0)
    shop.store.put("jobs/job-1/chain/00000001.json", b"{}")
    shop.shelf.prune(ours=ours.folder, attempt=3, now=KEEP_S + 5.0)
    left = " ".join(shop.keys())
    assert [m.folder in left for m in (old, half, newer, young, ours)] == [
        *(False, False, True, True, True)
    ]
    assert shop.shelf.find([KEY]) is None
    assert shop.shelf.find([OTHER]) is not None
    shop.shelf.clear()
    assert shop.keys() == ["jobs/job-1/chain/00000001.json"]


def test_a_send_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    grow(tmp_path / "env", {"f": ("file", bytes(range(256)) * 4, 0o644, 0)})
    shop = Shop()
    keeping = shop.shelf.begin(tmp_path, snapshot(tmp_path, ["env"], most_bytes=10**6), 1)
    pieces = keeping.packing.pieces()
    for _ in range(3):
        piece = next(pieces)
        shop.store.put(piece.key, piece.data)
        keeping.packing.sent(piece)
    assert len(list(keeping.packing.pieces())) == 1024 // PART - 3
    keeping.send(lambda: None)
    assert shop.shelf.publish(keeping.manifest(KEY, ["env"], setup_s=0.0, made=0.0))
    before = seen(tmp_path, "env")
    shop.restore(tmp_path)
    assert seen(tmp_path, "env") == before
