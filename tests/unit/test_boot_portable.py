"""An agent on another Python than the master's: uv comes from an index, by its hash."""

from __future__ import annotations

import ast
import hashlib
import io
import platform
import stat
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spothop_master.boot import setup_portable

LIBC = "manylinux_2_17" if platform.libc_ver()[0] == "glibc" else "musllinux_1_1"
UV = """#!/bin/sh
echo "$@" "certs=$UV_SYSTEM_CERTS" >> "$(dirname "$0")/told"
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Index:
    """A simple index (PEP 503) on the loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "uv").mkdir(parents=True)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def offer(self, *machines: str, sha256: str = "") -> str:
        """Wheels of uv for these architectures; the SHA-256 of all."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as wheel:
            wheel.writestr("uv-1.data/scripts/uv", UV)
        found = hashlib.sha256(content.getvalue()).hexdigest()
        links = []
        for machine in machines:
            name = f"uv-1-py3-none-{LIBC}_{machine}.whl"
            (self.folder / name).write_bytes(content.getvalue())
            links.append(f'<a href="../{name}#sha256={sha256 or found}">{name}</a>')
        (self.folder / "uv" / "index.html").write_text("\n".join(links))
        return found


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    found = Index(tmp_path / "index")
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The portable zip's folder, on a VM without uv."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(setup_portable.shutil, "which", lambda name: None)
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "agent.txt").write_text("")
    return folder


def test_uv_comes_from_the_index_and_installs_by_hash(index: Index, unpacked: Path) -> None:
    sha256 = index.offer("mips", platform.machine())
    (unpacked / "uv.txt").write_text(f"uv==1 \\\n    --hash=sha256:{sha256}\n")
    setup_portable.main(str(unpacked), {"UV_DEFAULT_INDEX": index.url})
    assert (unpacked / "uv").stat().st_mode & stat.S_IXUSR
    (told,) = (unpacked / "told").read_text().splitlines() if (unpacked / "told").exists() else [""]
    assert {"--require-hashes", "--only-binary"} <= set(told.split())
    assert f"--target {unpacked}/site" in told
    assert "certs=1" in told
    assert Path((unpacked / "python").read_text().strip()).exists()


def test_a_uv_that_is_not_in_the_list_is_not_taken(index: Index, unpacked: Path) -> None:
    index.offer(platform.machine())
    (unpacked / "uv.txt").write_text(f"uv==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SystemExit, match=r"has no uv of uv\.txt"):
        setup_portable.fetch_uv(str(unpacked), index.url)


def test_bytes_that_are_not_what_the_index_says_are_refused(index: Index, unpacked: Path) -> None:
    index.offer(platform.machine(), sha256="0" * 64)
    (unpacked / "uv.txt").write_text(f"uv==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SystemExit, match="has not the SHA-256"):
        setup_portable.fetch_uv(str(unpacked), index.url)
    assert not (unpacked / "uv").exists()


def test_a_uv_that_fails_fails_the_setup(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "bin" / "uv"
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\nexit 7\n")
    failing.chmod(0o755)
    monkeypatch.setattr(setup_portable.shutil, "which", lambda name: str(failing))
    with pytest.raises(SystemExit, match="ended with 7"):
        setup_portable.main(str(unpacked), {})
    assert not (unpacked / "python").exists()


# --- the Python that it promises ------------------------------------------------------------------

OLDEST = (3, 6)
GENERIC = frozenset({"list", "dict", "set", "frozenset", "tuple", "type"})


def test_it_runs_on_the_oldest_python_that_it_promises() -> None:
    """No interpreter so old is at hand: its grammar is, and what annotations do at run time. What
    of collections.abc and of the built-in types takes parameters does so from 3.9 on."""
    tree = ast.parse(Path(setup_portable.__file__).read_text("utf-8"), feature_version=OLDEST)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("collections", "collections.abc")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in GENERIC | imported, f"line {node.lineno}"
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            unions = [each for each in ast.walk(node.annotation) if isinstance(each, ast.BinOp)]
            assert not unions, f"line {node.lineno}: unions are of 3.10"
        assert not isinstance(node, (ast.NamedExpr, ast.Match)), "of 3.8 and 3.10"
        if isinstance(node, ast.ImportFrom):
            assert node.module != "__future__", "annotations are of 3.7"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            newer = {"removeprefix": "3.9", "removesuffix": "3.9"}
            assert node.func.attr not in newer, f"line {node.lineno}"
            keywords = {keyword.arg for keyword in node.keywords}
            assert not keywords & {"capture_output", "text", "dirs_exist_ok"}, "of 3.7 and 3.8"
