# SPDX-License-Identifier: Apache-2.0
"""
Memory between the launches of a chain, planned once.

Two regions suffice, because a launch never needs what the launch before the last one wrote: rows
for the first product and for the second take turns in one, their results in the other. Layers that
run one after the other on one stream share a workspace.
"""

from __future__ import annotations

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
    ) -> None:
        self.tokens = tokens
        self._sizes = (hidden, intermediate, top_k, a_dtype)
        rows = tokens * top_k
        self._rows = torch.empty(rows * max(hidden, intermediate), dtype=a_dtype, device=device)
        self._results = torch.empty(
            rows * max(hidden, 2 * intermediate), dtype=torch.bfloat16, device=device
        )
        self._views: dict[int, Buffers] = {}

    @classmethod
    def of(cls, config: MoEConfig, weights: ExpertWeights, tokens: int | None = None) -> Workspace:
        """Return memory for a layer: for its chunks, or for at most `tokens` if they are fewer."""
        return cls(
            hidden=weights.hidden,
            intermediate=weights.intermediate,
            top_k=config.top_k,
            tokens=min(tokens or config.chunk_tokens, config.chunk_tokens),
            a_dtype=weights.a_dtype,
            device=weights.device,
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

    def buffers(self, tokens: int) -> Buffers:
        """Return where the launches for `tokens` tokens write; those are at most `self.tokens`."""
        found = self._views.get(tokens)
        if found is None:
            hidden, intermediate, top_k, _ = self._sizes
            rows = tokens * top_k
            found = Buffers(
                a=_rows(self._rows, rows, hidden),
                h=_rows(self._results, rows, 2 * intermediate),
                q=_rows(self._rows, rows, intermediate),
                y=_rows(self._results, rows, hidden),
            )
            if len(self._views) >= _KEPT:
                self._views.clear()
            self._views[tokens] = found
        return found


def _rows(memory: Tensor, rows: int, columns: int) -> Tensor:
    return memory[: rows * columns].view(rows, columns)
