"""What `make` says before it sets up, and what it then runs."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
INDEX = "https://download.pytorch.org/whl/cpu"
LINUX = "Linux x86_64"


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("set_up")


def told(set_up: ModuleType, *, system: str = LINUX, gpu: bool = False, index: str = "") -> str:
    lines = set_up.lines(system=system, gpu=gpu, torch_index=index, free_gb=100.0)
    assert max(map(len, lines)) <= 80
    return "\n".join(lines)


def test_a_machine_without_a_gpu_hears_how_to_go_without_cuda(set_up: ModuleType) -> None:
    text = told(set_up)
    assert "3.0 GB to download" in text
    assert f"make demo TORCH_INDEX={INDEX}" in text
    assert "about 8 minutes" in text


@pytest.mark.parametrize(
    ("system", "gpu", "index", "size"),
    [
        (LINUX, True, "", "3.0 GB"),  # it wants CUDA
        (LINUX, False, INDEX, "0.2 GB"),
        ("Darwin arm64", False, "", "0.2 GB"),  # whose default build has none
    ],
)
def test_nobody_else_is_sent_elsewhere(
    set_up: ModuleType, system: str, gpu: bool, index: str, size: str
) -> None:
    text = told(set_up, system=system, gpu=gpu, index=index)
    assert f"about {size} to download" in text
    assert "Ctrl-C" not in text


def test_a_disk_that_is_too_small_is_told_before(set_up: ModuleType) -> None:
    lines = set_up.lines(system=LINUX, gpu=True, torch_index="", free_gb=5.0)
    assert "warning: only 5.0 GB are free here; it needs 7.6 GB" in lines


def test_make_takes_pytorch_from_the_index_that_is_named(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    default, named = (
        subprocess.run(
            ["make", "--dry-run", "demo", *options],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for options in ([], [f"TORCH_INDEX={INDEX}"])
    )
    assert f"--index-url '{INDEX}' --no-deps torch\n" in named
    assert "--index-url" not in default
    assert " torch\n" in default
    assert "-c constraints.txt" in named
    assert "--require-hashes -r requirements/dev.txt" in named


START = """
import runpy, signal, sys, types
seen = []
demo = types.ModuleType("demo")
demo.__getattr__ = lambda name: seen.append(signal.getsignal(signal.SIGINT)) or (lambda: 0)
sys.modules["demo"] = demo
runpy.run_path(sys.argv[1], run_name="not main")
print(seen[-1] is signal.SIG_DFL)
"""


def test_ctrl_c_while_the_demo_is_imported_leaves_no_trace() -> None:
    command = [sys.executable, "-c", START, str(DEMO / "__main__.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
