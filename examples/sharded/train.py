"""Two processes train one small network; each keeps and saves its half of the optimizer's state.

Started by torchrun. Every process computes the gradients of its own part of the batch, all sum them
(gloo, on the CPU), each updates the half of the weights that it owns with Adam, and hands it to the
others. So the weights are everywhere, and the moments of Adam only with their owner: a checkpoint
is two shards. The lines added for spothop end in `# spothop`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import spothop as sp  # spothop

RATE, BETA1, BETA2, EPSILON = 1e-2, 0.9, 0.999, 1e-8
FEATURES, HIDDEN, BATCH = 16, 64, 32


class Trainer:
    """The network as one flat vector of weights; this process owns one slice of it."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        generator = torch.Generator().manual_seed(7)
        count = FEATURES * HIDDEN + HIDDEN
        self.weights = torch.randn(count, generator=generator) * 0.1
        self.truth = torch.randn(FEATURES, generator=generator)
        self.slices = [slice(count * r // world, count * (r + 1) // world) for r in range(world)]
        self.own = self.slices[rank]
        self.first = torch.zeros(self.weights[self.own].shape)
        self.second = torch.zeros(self.weights[self.own].shape)
        self.step = 0

    def train(self) -> float:
        """One step; the mean loss over all processes."""
        seed = self.step * len(self.slices) + self.rank
        inputs = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(seed))
        weights = self.weights.clone().requires_grad_()
        hidden = torch.tanh(inputs @ weights[: FEATURES * HIDDEN].view(FEATURES, HIDDEN))
        loss = (
            (hidden @ weights[FEATURES * HIDDEN :] - torch.sin(inputs @ self.truth)).square().mean()
        )
        loss.backward()
        assert weights.grad is not None
        total = torch.cat([weights.grad, loss.detach().view(1)])
        dist.all_reduce(total)
        self.step += 1
        self._update(total[:-1] / len(self.slices))
        return float(total[-1]) / len(self.slices)

    def _update(self, gradient: torch.Tensor) -> None:
        """Adam on the own slice; then everybody gets everybody's."""
        mine = gradient[self.own]
        self.first.mul_(BETA1).add_(mine, alpha=1 - BETA1)
        self.second.mul_(BETA2).addcmul_(mine, mine, value=1 - BETA2)
        mean = self.first / (1 - BETA1**self.step)
        scale = (self.second / (1 - BETA2**self.step)).sqrt() + EPSILON
        self.weights[self.own] -= RATE * mean / scale
        for owner, part in enumerate(self.slices):
            dist.broadcast(self.weights[part], src=owner)

    def save(self, path: Path) -> None:
        """The shard of this process."""
        state = {
            "step": self.step,
            "weights": self.weights[self.own].clone(),
            "first": self.first,
            "second": self.second,
        }
        torch.save(state, path)

    def load(self, path: Path) -> None:
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        self.step = saved["step"]
        self.weights[self.own] = saved["weights"]
        self.first, self.second = saved["first"], saved["second"]
        for owner, part in enumerate(self.slices):
            dist.broadcast(self.weights[part], src=owner)


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="completed steps at the end")
    parser.add_argument("--save-every", type=int, default=50, help="steps between saves")
    parser.add_argument("--step-ms", type=float, default=0, help="pause in each step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank(), dist.get_world_size())
    shard = Path(f"shard-{trainer.rank}.pt")

    checkpoint = sp.latest_checkpoint()  # spothop: the shard of this process
    if checkpoint:  # spothop
        trainer.load(checkpoint)  # spothop
        print(f"rank {trainer.rank} resumed at step {trainer.step}", flush=True)  # spothop

    while trainer.step < args.steps:
        with sp.step_context():  # spothop
            loss = trainer.train()
            time.sleep(args.step_ms / 1000)
        sp.log(loss=loss)  # spothop
        if trainer.rank == 0 and trainer.step % 10 == 0:
            print(f"step {trainer.step:5d}  loss {loss:.6f}", flush=True)
        if trainer.step % args.save_every == 0 or sp.check_save():  # spothop
            trainer.save(shard)
            sp.backup(shard, shard=True)  # spothop

    if trainer.rank == 0:
        outputs = Path(os.environ.get("SPOTHOP_OUTPUTS", "outputs"))
        outputs.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(trainer.weights.numpy().tobytes()).hexdigest()
        (outputs / "weights.sha256").write_text(digest)
        print(f"done: weights {digest}", flush=True)
    dist.destroy_process_group()
    sp.done()  # spothop


if __name__ == "__main__":
    main()
