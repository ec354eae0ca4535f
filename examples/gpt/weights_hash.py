"""SHA-256 over the named tensors of a checkpoint: equal hashes mean bit-identical weights.

    python weights_hash.py outputs/model.pt

The files themselves cannot be compared: the same tensors may be stored in different archives.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """In the order of names; the name, type and shape of each count, as do all bits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def checkpoint_hash(path: Path) -> str:
    """Of the model in a checkpoint or in the final outputs."""
    return weights_hash(torch.load(path, weights_only=True)["model"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SHA-256 over the named tensors of a checkpoint")
    parser.add_argument("checkpoint", type=Path, nargs="+")
    for checkpoint in parser.parse_args().checkpoint:
        print(f"{checkpoint_hash(checkpoint)}  {checkpoint}")
