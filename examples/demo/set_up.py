"""What `make` is about to install, how much that is, and how long it takes: said before it begins.

Run with the Python that is there, so it needs nothing but the standard library. PyTorch's default
build for Linux brings CUDA, which a machine without a GPU never uses; a build without it comes with
`make TORCH_INDEX=URL`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""As PyTorch's page "Get started" names it."""

LINE_MBIT_S = 100
"""A usual line, for estimates of time."""
UNPACK_S_PER_GB = 30
"""Of unpacking and compiling, for a GB on the disk; CPU time, measured on a small VM."""


@dataclass(frozen=True)
class Part:
    """In GB: what comes over the line, and what it becomes on the disk. Rounded up, of 2026."""

    download: float
    disk: float

    def __add__(self, other: Part) -> Part:
        return Part(self.download + other.download, self.disk + other.disk)

    def __str__(self) -> str:
        return f"{self.download:.1f} GB to download, {self.disk:.1f} GB on the disk"


CUDA, CPU, OTHERS = Part(3.0, 7.0), Part(0.2, 0.8), Part(0.2, 0.6)


def lines(*, system: str, gpu: bool, torch_index: str, free_gb: float) -> list[str]:
    """What to tell, at most 80 columns wide.

    `system` is that of `platform`, such as `Linux x86_64`; `torch_index` is empty for the default.
    """
    brings_cuda = not torch_index and system == "Linux x86_64"
    torch = CUDA if brings_cuda else CPU
    whole = torch + OTHERS
    told = [
        "Set-up, once. All of it goes to .venv; `make clean` removes it.",
        "  1. an empty Python environment",
        "  2. what spothop and its tests need: some 120 packages",
        f"     about {OTHERS}",
        f"  3. PyTorch, {f'from {torch_index}' if torch_index else 'its default build'}",
        f"     about {torch}",
        f"This takes about {minutes(whole)}, on a line of {LINE_MBIT_S} Mbit/s.",
    ]
    if brings_cuda and not gpu:
        told += [
            "",
            "That build of PyTorch is the one with CUDA, and this machine shows no GPU.",
            f"The one without is {CPU.download:.1f} GB. To take it, press Ctrl-C, and run",
            f"  make demo TORCH_INDEX={CPU_INDEX}",
        ]
    if free_gb < whole.disk:
        told += ["", f"warning: only {free_gb:.1f} GB are free here; it needs {whole.disk:.1f} GB"]
    return [*told, ""]


def minutes(part: Part) -> str:
    seconds = part.download * 8000 / LINE_MBIT_S + part.disk * UNPACK_S_PER_GB
    whole = max(1, round(seconds / 60))
    return f"{whole} minute{'s' if whole > 1 else ''}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch-index", default="")
    told = lines(
        system=f"{platform.system()} {platform.machine()}",
        gpu=shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists(),
        torch_index=parser.parse_args().torch_index,
        free_gb=shutil.disk_usage(os.curdir).free / 1e9,
    )
    print("\n".join(told), flush=True)
