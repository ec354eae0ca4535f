"""Train a character-level GPT with the usual loop, and survive preemptions exactly.

The loop has what such loops have: batches prefetched while a step computes, gradient accumulation,
a learning-rate schedule, clipping, evaluation now and then, the best validation loss. A line that
spothop needs ends in `# spothop`, one that an *exact* resume needs has `# exact`: what goes on
after a preemption has the same weights, bit for bit, as what was never interrupted.

    python prepare.py && python train.py --steps 100
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import spothop as sp  # spothop
from model import GPT
from prepare import prepare

CHECKPOINT = Path("ckpt.pt")
Batch = tuple[Tensor, Tensor]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="completed steps at the end")
    parser.add_argument("--save-every", type=int, default=500, help="steps between saves")
    parser.add_argument("--eval-every", type=int, default=250, help="steps between evaluations")
    parser.add_argument("--eval-batches", type=int, default=20, help="batches of an evaluation")
    parser.add_argument("--log-every", type=int, default=10, help="steps between printed lines")
    parser.add_argument("--batch", type=int, default=12, help="sequences at once")
    parser.add_argument("--accumulate", type=int, default=2, help="batches a step")
    parser.add_argument("--context", type=int, default=64, help="characters a sequence")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=50, help="steps until it is reached")
    parser.add_argument("--decay-steps", type=int, default=2000, help="until it is at its lowest")
    parser.add_argument("--clip", type=float, default=1.0, help="norm of the gradients, at most")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--compile", action="store_true", help="torch.compile; off by default")
    parser.add_argument(
        "--threads", type=int, default=1, help="on a CPU; another number, other sums"
    )
    return parser.parse_args()


class Data:
    """Two files of 16-bit numbers, read where a batch needs them."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        folder = prepare()
        self.args, self.device = args, device
        self.characters = json.loads((folder / "meta.json").read_text())["characters"]
        self.files = {
            name: np.memmap(folder / f"{name}.bin", np.uint16, "r") for name in ("train", "val")
        }

    def batch(self, name: str, generator: torch.Generator | None = None) -> Batch:
        """At random, from PyTorch's own random state if there is no generator."""
        file, length = self.files[name], self.args.context
        starts = torch.randint(len(file) - length, (self.args.batch,), generator=generator)
        rows = [torch.from_numpy(file[i : i + length + 1].astype(np.int64)) for i in starts]
        whole = torch.stack(rows).to(self.device)
        return whole[:, :-1], whole[:, 1:]


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Up in a line, down in a cosine: of the step alone, so that no checkpoint needs to hold it."""
    if step < args.warmup:
        return args.rate * (step + 1) / args.warmup
    done = min(1.0, (step - args.warmup) / max(1, args.decay_steps - args.warmup))
    return args.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def evaluate(model: GPT, data: Data, batches: int) -> float:
    """The mean loss on text that it never learns from."""
    generator = torch.Generator().manual_seed(0)  # the same text each time
    model.eval()
    losses = [model(*data.batch("val", generator)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / len(losses)


def random_states() -> dict[str, Any]:
    """Of all that training draws from: batches and dropout, and whatever a script adds."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)  # exact: the number of threads changes the order of sums
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Data(args, device)
    shape = {key: getattr(args, key) for key in ("width", "layers", "heads", "context", "dropout")}
    model = GPT(characters=len(data.characters), **shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.99))
    step, best = 0, math.inf
    batch: Batch | None = None

    checkpoint = sp.latest_checkpoint()  # spothop
    if checkpoint:  # spothop
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, best = saved["step"], saved["best"]
        batch = saved["batch"]  # exact: it was drawn before the random states were saved
        set_random_states(saved["random"])  # exact
        print(f"resumed at step {step}", flush=True)

    trained = torch.compile(model) if args.compile else model
    if batch is None:
        batch = data.batch("train")

    while step < args.steps:
        if step % args.eval_every == 0:
            validation = evaluate(model, data, args.eval_batches)
            best = min(best, validation)
            print(f"step {step:5d}  validation loss {validation:.4f}, best {best:.4f}", flush=True)
            sp.log(validation_loss=validation)  # spothop

        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, step)
        with sp.step_context():  # spothop
            for _ in range(args.accumulate):
                loss = trained(*batch) / args.accumulate
                batch = data.batch("train")  # prefetched: a GPU computes meanwhile
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1

        if step % args.log_every == 0:
            last = loss.item() * args.accumulate
            print(f"step {step:5d}  loss {last:.4f}", flush=True)
            sp.log(loss=last)  # spothop
        if step % args.save_every == 0 or sp.check_save():  # spothop
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "best": best,
                    "batch": batch,  # exact: the next step begins with it
                    "random": random_states(),  # exact
                },
                CHECKPOINT,
            )
            sp.backup(CHECKPOINT)  # spothop

    outputs = Path(os.environ.get("SPOTHOP_OUTPUTS", "outputs"))  # spothop
    outputs.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "shape": shape}, outputs / "model.pt")
    print(f"done: validation loss {evaluate(model, data, args.eval_batches):.4f}", flush=True)
    sp.done()  # spothop


if __name__ == "__main__":
    main()
