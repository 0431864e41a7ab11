# SPDX-License-Identifier: Apache-2.0
"""
Memory between the launches of a chain, planned once.

Two regions suffice, because a launch never needs what the launch before the last one wrote: rows
for the first product and for the second take turns in one, their results in the other. Layers that
run one after the other on one stream share a workspace.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.frozen import frozen
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights

_KEPT = 256
"""Numbers of tokens whose views are kept; decoding has that many at most."""


@frozen
class Buffers:
    """
    Where the launches of a chain write; None: into new memory.

    Attributes:
        a: (P, H), rows of the first product.
        h: (P, 2 I) bfloat16, its result.
        q: (P, I), rows of the second product.
        y: (P, H) bfloat16, its result.
    """

    a: Tensor | None = None
    h: Tensor | None = None
    q: Tensor | None = None
    y: Tensor | None = None


NEW = Buffers()
"""New memory for everything."""


class Workspace:
    """
    Memory for at most `tokens` tokens at once.

    Args:
        hidden: H.
        intermediate: I.
        top_k: Experts of a token.
        tokens: Most tokens at once.
        a_dtype: Element type of activations in front of a product.
        device: Where.
        rows: Least rows that it has room for, where they shall be more than tokens ask for.
    """

    def __init__(  # sizes
        self,
        *,
        hidden: int,
        intermediate: int,
        top_k: int,
        tokens: int,
        a_dtype: torch.dtype,
        device: torch.device | str,
        rows: int = 0,
    ) -> None:
        self.tokens = tokens
        self.rows = rows = max(tokens * top_k, rows)
        self._sizes = (hidden, intermediate, top_k, a_dtype)
        self._rows = torch.empty(rows * max(hidden, intermediate), dtype=a_dtype, device=device)
        self._results = torch.empty(
            rows * max(hidden, 2 * intermediate), dtype=torch.bfloat16, device=device
        )
        self._views: dict[int | tuple[int, int], Buffers] = {}
        self._order: Tensor | None = None

    @classmethod
    def of(
        cls,
        config: MoEConfig,
        weights: ExpertWeights,
        tokens: int | None = None,
        *,
        masked: int = 0,
    ) -> Workspace:
        """
        Return memory for a layer: for its chunks, or for at most `tokens` if they are fewer; and
        for at least `masked` rows of every expert, as `MoELayer.experts` has them.
        """
        return cls(
            hidden=weights.hidden,
            intermediate=weights.intermediate,
            top_k=config.top_k,
            tokens=min(tokens or config.chunk_tokens, config.chunk_tokens),
            a_dtype=weights.a_dtype,
            device=weights.device,
            rows=weights.groups * masked,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self._rows.nbytes + self._results.nbytes

    def require(self, config: MoEConfig, weights: ExpertWeights) -> None:
        """
        Do nothing where it serves a layer.

        Raises:
            InputError: It is for other sizes, types or another device.
        """
        wanted = (weights.hidden, weights.intermediate, config.top_k, weights.a_dtype)
        if self._sizes != wanted or self._rows.device != weights.device:
            raise InputError(
                "workspace",
                f"must be one for H, I, k, activations = {wanted} on {weights.device} (got one for "
                f"{self._sizes} on {self._rows.device})",
            )

    def has_room(self, groups: int, rows: int) -> bool:
        """Say whether a matrix of `rows` rows for each expert fits in."""
        return groups * rows <= self.rows

    def require_masked(self, weights: ExpertWeights, rows: int) -> None:
        """
        Do nothing where it serves a matrix of `rows` rows for each expert.

        Raises:
            InputError: It has less room, or is for other sizes, types or another device.
        """
        hidden, intermediate, _, a_dtype = self._sizes
        have = hidden, intermediate, a_dtype
        wanted = weights.hidden, weights.intermediate, weights.a_dtype
        if have != wanted or self._rows.device != weights.device:
            raise InputError(
                "workspace",
                f"must be one for H, I, activations = {wanted} on {weights.device} (got one for "
                f"{have} on {self._rows.device})",
            )
        groups = weights.groups
        if not self.has_room(groups, rows):
            raise InputError(
                "workspace",
                f"must have room for {groups} matrices of {rows} rows (got one for {self.rows} "
                f"rows): make it with Workspace.of(config, weights, tokens, masked={rows})",
            )

    def buffers(self, tokens: int) -> Buffers:
        """Return where the launches for `tokens` tokens write; those are at most `self.tokens`."""
        found = self._views.get(tokens)
        return found or self._kept(tokens, tokens * self._sizes[2])

    def masked(self, groups: int, rows: int) -> Buffers:
        """Return the same for a matrix of each expert, (G, M, ...): as `has_room` says."""
        found = self._views.get((groups, rows))
        return found or self._kept((groups, rows), groups, rows)

    def order(self, groups: int, rows: int) -> Tensor:
        """
        Return (G, M) int32, the numbers from 0 on. What a graph that is being captured would write
        only when it is replayed is not kept.
        """
        found = self._order
        if found is None:
            found = in_order(1, self.rows, self._rows.device)
            if not (found.is_cuda and torch.cuda.is_current_stream_capturing()):
                self._order = found
        return found[0, : groups * rows].view(groups, rows)

    def _kept(self, key: int | tuple[int, int], *shape: int) -> Buffers:
        hidden, intermediate, _, _ = self._sizes
        found = Buffers(
            a=_part(self._rows, *shape, hidden),
            h=_part(self._results, *shape, 2 * intermediate),
            q=_part(self._rows, *shape, intermediate),
            y=_part(self._results, *shape, hidden),
        )
        if len(self._views) >= _KEPT:
            self._views.clear()
        self._views[key] = found
        return found


def in_order(groups: int, rows: int, device: torch.device) -> Tensor:
    """Return the numbers of the rows of so many matrices: (G, M) int32."""
    return torch.arange(groups * rows, dtype=torch.int32, device=device).view(groups, rows)


def _part(memory: Tensor, *shape: int) -> Tensor:
    return memory[: prod(shape)].view(shape)
