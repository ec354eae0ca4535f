"""A small GPT of PyTorch's own layers: characters in, the logits of the next character out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    def __init__(
        self, *, characters: int, width: int, layers: int, heads: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            *(width, heads, 4 * width, dropout),
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.token.weight  # tied
        for weights in (self.token.weight, self.position.weight):
            nn.init.normal_(weights, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss over all characters, in nats."""
        length = x.shape[1]
        h = self.drop(self.token(x) + self.position(torch.arange(length, device=x.device)))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
        logits = self.head(self.blocks(h, mask=mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())
