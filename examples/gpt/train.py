"""Train a byte-level GPT on the source text of Python's own standard library.

Runs alone (`python train.py --steps 50`) and as a spothop job; the lines added for spothop end in
`# spothop`. A resumed run equals an uninterrupted one bit for bit: the checkpoint holds weights,
optimizer, step, and both random states (Python's chooses the data, PyTorch's the dropout), and one
thread computes, because the number of threads changes the order of sums.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import spothop as sp  # spothop
from model import GPT, AdamW

CHECKPOINT = Path("ckpt.pt")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=500, help="completed steps at the end")
    parser.add_argument("--save-every", type=int, default=100, help="steps between saves")
    parser.add_argument("--log-every", type=int, default=10, help="steps between printed lines")
    parser.add_argument("--batch", type=int, default=20, help="sequences a step")
    parser.add_argument("--context", type=int, default=64, help="bytes a sequence")
    parser.add_argument("--width", type=int, default=128, help="size of the residual stream")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus-mb", type=float, default=4.0, help="text to learn, at most")
    parser.add_argument("--pause-ms", type=float, default=0, help="rest in each step, for tests")
    return parser.parse_args()


def read_corpus(limit: int) -> bytes:
    """The first `limit` bytes of the standard library's source; the same on every VM."""
    text = bytearray()
    for folder, folders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        folders[:] = sorted(set(folders) - {"__pycache__", "site-packages", "dist-packages"})
        for name in sorted(names):
            if name.endswith(".py") and len(text) < limit:
                text += Path(folder, name).read_bytes()
        if len(text) >= limit:
            break
    if len(text) < 100_000:
        sys.exit("error: the standard library of this Python has no source text to train on")
    return bytes(text[:limit])


class Trainer:
    """Everything that changes from step to step, and how it is saved and loaded."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.shape = {key: getattr(args, key) for key in ("width", "layers", "heads", "context")}
        corpus = read_corpus(int(args.corpus_mb * 1e6))
        self.corpus_hash = hashlib.sha256(corpus).hexdigest()
        self.corpus = torch.frombuffer(bytearray(corpus), dtype=torch.uint8)
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        self.model = GPT(**self.shape, dropout=args.dropout)
        self.optimizer = AdamW(self.model, rate=args.rate)
        self.step = 0

    def batch(self) -> Tensor:
        length = self.args.context + 1
        starts = [random.randrange(len(self.corpus) - length) for _ in range(self.args.batch)]
        return torch.stack([self.corpus[start : start + length] for start in starts]).long()

    def train(self, batch: Tensor) -> float:
        """One step; returns the loss in nats a byte."""
        logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.step += 1
        self.optimizer.update(self.step)
        return loss.item()

    def save(self, path: Path) -> None:
        torch.save(
            {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random_python": random.getstate(),
                "random_torch": torch.get_rng_state(),
                "shape": self.shape,
                "corpus_hash": self.corpus_hash,
                "threads": torch.get_num_threads(),
            },
            path,
        )

    def load(self, path: Path) -> None:
        """Exits when text, model or thread count differ: the resume would not be exact."""
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        here = {
            "corpus_hash": self.corpus_hash,
            "shape": self.shape,
            "threads": torch.get_num_threads(),
        }
        for name, value in here.items():
            if saved[name] != value:
                sys.exit(
                    f"error: {path}: its {name} is {saved[name]}, here {value};"
                    " resume with the Python version and options that it was made with"
                )
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        random.setstate(saved["random_python"])
        torch.set_rng_state(saved["random_torch"])


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    trainer = Trainer(args)
    weights = sum(p.numel() for p in trainer.model.parameters())
    print(f"{weights:,} weights, {len(trainer.corpus):,} bytes of text", flush=True)

    checkpoint = sp.latest_checkpoint()  # spothop
    if checkpoint:  # spothop
        trainer.load(checkpoint)  # spothop
        print(f"resumed at step {trainer.step}", flush=True)  # spothop

    began, began_step = time.monotonic(), trainer.step
    while trainer.step < args.steps:
        batch = trainer.batch()
        with sp.step_context():  # spothop
            loss = trainer.train(batch)
            time.sleep(args.pause_ms / 1000)
        sp.log(loss=loss)  # spothop
        step = trainer.step
        if step % args.log_every == 0:
            pace = (time.monotonic() - began) / (step - began_step) * 1000
            print(f"step {step:5d}  loss {loss:.4f}  {pace:.0f} ms/step", flush=True)
        if step == args.steps or step % args.save_every == 0 or sp.check_save():  # spothop
            trainer.save(CHECKPOINT)
            sp.backup(CHECKPOINT)  # spothop

    outputs = Path(os.environ.get("SPOTHOP_OUTPUTS", "outputs"))
    outputs.mkdir(parents=True, exist_ok=True)
    torch.save({"model": trainer.model.state_dict(), "shape": trainer.shape}, outputs / "model.pt")
    print(f"done: {outputs / 'model.pt'}", flush=True)
    sp.done()  # spothop


if __name__ == "__main__":
    main()
