"""The agent as one file: what is in it, that it runs by itself, and that its bytes are the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from spothop.wire import AgentConfig, Dialect
from spothop_master.boot import agent_zip, packages
from spothop_master.boot.agent_zip import PORTABLE, AgentZips, native_tag, write_zip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> AgentZips:
    zips = AgentZips(tmp_path_factory.mktemp("agents"))
    zips.current()
    return zips


def file_of(zips: AgentZips, tag: str) -> Path:
    path = zips.path(zips.current().by_tag[tag])
    assert path is not None
    return path


def test_the_native_file_is_all_that_an_agent_needs(built: AgentZips, tmp_path: Path) -> None:
    with zipfile.ZipFile(file_of(built, native_tag())) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    assert not any(name.startswith(("spothop_master", "bin/", "..")) for name in names)
    assert not any(
        "__pycache__" in name or name.endswith(("RECORD", "direct_url.json")) for name in names
    )
    # without this installation's own packages: -I leaves the user's out, -S all others
    run = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path), "--help"],
        capture_output=True,
        env={"PATH": os.defpath},
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"AgentConfig" in run.stdout


def test_the_portable_file_has_no_code_of_this_machine(built: AgentZips) -> None:
    with zipfile.ZipFile(file_of(built, PORTABLE)) as archive:
        names = archive.namelist()
        wanted = archive.read("agent.txt").decode()
    assert not any(name.endswith(".so") for name in names)
    assert {"setup_portable.py", "uv.txt", "spothop_agent/agent.py"} <= set(names)
    needed = packages.closure(packages.DISTRIBUTION, [packages.EXTRA])
    assert {d.metadata["Name"].lower().replace("_", "-") for d in needed} <= {
        line.partition("==")[0] for line in wanted.splitlines() if "==" in line
    }


UV = """#!{python}
import os, shutil, sys
target = sys.argv[sys.argv.index("--target") + 1]
for name, path in {files!r}.items():
    os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
    shutil.copy(path, os.path.join(target, name))
"""


def test_the_portable_file_runs_on_another_python(built: AgentZips, tmp_path: Path) -> None:
    """As `boot.sh` installs and starts it. What the index would give is copied from here."""
    other, folder, tools = sys._base_executable, tmp_path / "agent", tmp_path / "bin"  # type: ignore[attr-defined]
    assert Path(other).resolve() == Path(sys.executable).resolve()
    tools.mkdir()
    files = {name: str(path) for name, path in packages.dependency_files().items()}
    (tools / "uv").write_text(UV.format(python=other, files=files))
    (tools / "uv").chmod(0o755)
    with zipfile.ZipFile(file_of(built, PORTABLE)) as archive:
        archive.extractall(folder)
    environ = {"PATH": str(tools)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command], capture_output=True, text=True, env=environ, check=False, cwd=tmp_path
        )

    installed = run(other, "-I", str(folder / "setup_portable.py"))
    assert installed.returncode == 0, installed.stderr
    python = (folder / "python").read_text().strip()
    assert run(python, "-I", str(folder), "--help").returncode == 0
    config = AgentConfig(
        master="http://127.0.0.1:9",
        token="t",
        vm="vm-1",
        dialect=Dialect.AWS,
        directory=str(tmp_path / "vm"),
        away_s=0.1,
    )
    (tmp_path / "agent.json").write_text(config.model_dump_json())
    ran = run(python, "-I", str(folder), "--config", str(tmp_path / "agent.json"))
    assert ran.returncode == 4, ran.stderr  # nobody was heard of: it ends its VM
    assert "Traceback" not in ran.stderr


def test_an_installation_gives_the_same_bytes_each_time(
    built: AgentZips, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_zip, "_native", agent_zip._portable)  # which is small
    one, other = AgentZips(tmp_path / "1").current(), AgentZips(tmp_path / "2").current()
    assert one == other
    assert one.by_tag[PORTABLE] == built.current().by_tag[PORTABLE]
    for tag, sha256 in built.current().by_tag.items():
        assert hashlib.sha256(file_of(built, tag).read_bytes()).hexdigest() == sha256


def test_what_another_master_removed_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_zip, "_native", agent_zip._portable)  # which is small
    zips = AgentZips(tmp_path)
    known = zips.current()
    file_of(zips, PORTABLE).unlink()
    assert zips.current() == known
    assert file_of(zips, PORTABLE).is_file()


def test_order_and_times_of_files_do_not_count(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("a")
    b.write_text("b")
    write_zip(tmp_path / "1.zip", {"a": a, "b": b})
    os.utime(a, (0, 0))
    a.chmod(0o755)
    write_zip(tmp_path / "2.zip", {"b": b, "a": a})
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()


def test_a_master_that_is_started_again_builds_nothing(
    built: AgentZips, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = file_of(built, PORTABLE).parent

    def build(self: AgentZips, files: object) -> str:
        raise AssertionError("built again")

    monkeypatch.setattr(AgentZips, "_build", build)
    assert AgentZips(folder).current() == built.current()


def test_an_upgrade_keeps_what_a_living_vm_was_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_zip, "_native", lambda: {"a": b"1"})
    before = AgentZips(tmp_path).current().by_tag[native_tag()]
    monkeypatch.setattr(agent_zip, "_native", lambda: {"a": b"2"})
    upgraded = AgentZips(tmp_path)
    assert upgraded.current().by_tag[native_tag()] != before
    assert upgraded.path(before) is not None
    assert upgraded.remove_unused([before]) == []
    assert upgraded.remove_unused([]) == [before]
    assert upgraded.path(before) is None
    assert AgentZips(tmp_path).remove_unused([]) == []  # nobody has asked this one yet


def test_nothing_but_a_hash_is_a_name(built: AgentZips) -> None:
    folder = file_of(built, PORTABLE).parent
    (folder.parent / "secret.zip").write_text("s")
    assert built.path("../secret") is None
    assert built.path("0" * 64) is None


def test_requirements_of_other_extras_are_left_out() -> None:
    lines = ['a>=1; extra == "agent"', "b[x,y]>=2", 'c; extra == "master"', 'd; python_version<"4"']
    assert list(packages._requirements(lines, "")) == [("b", ""), ("b", "x"), ("b", "y"), ("d", "")]
    assert list(packages._requirements(lines, "agent")) == [("a", "")]


def test_a_package_without_record_is_taken_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "__init__.py").write_text("")
    info = tmp_path / "plain-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\nVersion: 1\n")
    (info / "top_level.txt").write_text("plain\n")
    owner = tmp_path / "owner-1.dist-info"
    owner.mkdir()
    (owner / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: owner\nVersion: 1\nRequires-Dist: plain\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(packages, "DISTRIBUTION", "owner")
    assert packages.dependency_files() == {"plain/__init__.py": tmp_path / "plain" / "__init__.py"}


def test_a_distribution_that_is_not_there_is_named() -> None:
    with pytest.raises(packages.PackageError, match="no-such-thing is not installed"):
        packages.closure("no-such-thing", [])
    assert metadata.distribution("spothop")
