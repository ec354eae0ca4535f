"""A small GPT over bytes: pre-norm blocks, causal attention, tied embeddings; and its optimizer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256


class Block(nn.Module):
    """Attention, then a perceptron, each on a normalised residual stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(mixed, self.dropout, self.training)
        x = x + self.mlp(self.norm2(x))
        return x


class GPT(nn.Module):
    """Bytes in, the logits of the next byte out."""

    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


class AdamW:
    """Loshchilov and Hutter (ICLR 2019), algorithm 2, with the learning rate warmed up linearly.

    torch.optim has it too, but imports PyTorch's compiler: a second more at every start, which is
    much for a demonstration that starts often. Nothing in spothop needs this one.
    """

    def __init__(self, model: nn.Module, *, rate: float, decay: float = 0.1, warmup: int = 100):
        self.rate, self.decay, self.warmup = rate, decay, warmup
        self.named = dict(model.named_parameters())
        self.first = {name: torch.zeros_like(p) for name, p in self.named.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.named.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """`step` counts from 1."""
        rate = self.rate * min(1.0, step / self.warmup)
        for name, p in self.named.items():
            m, v, grad = self.first[name], self.second[name], p.grad
            assert grad is not None
            m.lerp_(grad, 0.1)
            v.lerp_(grad * grad, 0.01)
            p.mul_(1 - rate * self.decay)
            p.addcdiv_(m / (1 - 0.9**step), (v / (1 - 0.99**step)).sqrt_().add_(1e-8), value=-rate)
            p.grad = None

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {"first": self.first, "second": self.second}

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        self.first, self.second = state["first"], state["second"]
