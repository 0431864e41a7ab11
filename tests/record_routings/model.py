# SPDX-License-Identifier: Apache-2.0
"""A small language model over bytes whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, CONTEXT = 96, 4, 4, 128
BALANCE = 0.01
"""Weight of the loss that asks routers to deal evenly, as that of published models."""


class Experts(nn.Module):
    """
    A softmax router that takes `top_k` of `experts`, and these: two matrices and a GELU.

    Attributes:
        chosen: (tokens, top_k) experts of the last call.
        imbalance: The auxiliary loss of the last call: 1 where rows are dealt evenly.
    """

    chosen: Tensor
    imbalance: Tensor

    def __init__(self, experts: int, top_k: int, hidden: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, hidden) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, WIDTH) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return (tokens, WIDTH), the weighted sum of each token's experts."""
        shares = self.router(x).softmax(-1)
        weights, self.chosen = shares.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        experts = shares.shape[1]
        counts = self.chosen.flatten().bincount(minlength=experts)
        self.imbalance = experts * (counts / counts.sum() * shares.mean(0)).sum()
        order = self.chosen.flatten().argsort(stable=True)
        group = self.chosen.flatten()[order]
        place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[group]
        token = order // self.top_k
        rows = x.new_zeros(experts, int(counts.max()), WIDTH).index_put((group, place), x[token])
        made = functional.gelu(rows @ self.up) @ self.down
        parts = made[group, place] * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, token, parts)


class Block(nn.Module):
    """Causal attention, then experts."""

    def __init__(self, experts: int, top_k: int, hidden: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = Experts(experts, top_k, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return (texts, length, WIDTH)."""
        texts, length, _ = x.shape
        parts = self.qkv(self.before(x)).view(texts, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.experts(self.between(x).flatten(0, 1)).view_as(x)


class Model(nn.Module):
    """Bytes to the next byte's logits."""

    def __init__(self, experts: int, top_k: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(experts, top_k, hidden) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    @property
    def mixtures(self) -> list[Experts]:
        """The experts of each layer."""
        return [block.experts for block in self.blocks]  # type: ignore[union-attr,misc]

    def forward(self, text: Tensor) -> Tensor:
        """Return (texts, length, 256) of (texts, length) bytes."""
        x = self.embed(text) + self.places[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def train(model: Model, text: Tensor, steps: int, seed: int) -> float:
    """Train on random pieces of `text`, a row of bytes; return the mean loss of the last tenth."""
    chance = torch.Generator().manual_seed(seed)
    steps_of = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(steps_of, max_lr=3e-3, total_steps=steps)
    losses = []
    for _ in range(steps):
        pieces = batch(text, 16, chance)
        loss = next_byte_loss(model, pieces)
        uneven = torch.stack([each.imbalance for each in model.mixtures]).mean()
        steps_of.zero_grad()
        (loss + BALANCE * uneven).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps_of.step()
        rates.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def batch(text: Tensor, texts: int, chance: torch.Generator) -> Tensor:
    """Return (texts, CONTEXT + 1) bytes from anywhere in `text`."""
    starts = torch.randint(len(text) - CONTEXT - 1, (texts,), generator=chance)
    return text[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]


def next_byte_loss(model: Model, pieces: Tensor) -> Tensor:
    """Return the cross-entropy of each next byte, in nats."""
    logits = model(pieces[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
