# SPDX-License-Identifier: Apache-2.0
"""jitgen's chain, whole and step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from jitgen.bench.layer.operands import Operands
from jitgen.bench.layer.side import Ready
from jitgen.frozen import frozen
from jitgen.layer.chain import Chain, Rows, Sorted
from jitgen.layer.workspace import NEW, Buffers, Workspace
from jitgen.ops.silu_mul_quantize.call import silu_mul_quantize
from jitgen.ops.silu_mul_quantize.config import SiluMulQuantizeConfig, SiluMulQuantizeProblem
from jitgen.runtime.session import select
from jitgen.targets.devices import default_arch

OURS, EARLY = "jitgen", "jitgen-early-swiglu"

STEPS = ("sort", "gather", "gate and up", "swiglu", "down", "combine")
"""The launches of a chain, in their order."""


def chain(operands: Operands) -> Chain:
    """Return the chain of a case."""
    return Chain(config=operands.config, weights=operands.by_block)


def prepare(operands: Operands) -> Ready:
    """Return the chain as `jitgen.MoELayer` runs it, with its memory planned."""
    return _ready(operands, chain(operands))


def prepare_early(operands: Operands) -> Ready:
    """Return the chain with a SwiGLU that starts before the first product has ended."""
    weights = operands.by_block
    problem = SiluMulQuantizeProblem(
        layout="ragged",  # type: ignore[arg-type]
        groups=weights.groups,
        m=operands.case.rows,
        n=weights.intermediate,
    )
    config = select(problem, default_arch()).config
    early = replace(config, tiling=replace(config.tiling, use_pdl=True))
    return _ready(operands, with_swiglu(operands, early))


def with_swiglu(operands: Operands, config: SiluMulQuantizeConfig) -> Chain:
    """Return the chain of a case with another SwiGLU."""
    return _Early(config=operands.config, weights=operands.by_block, swiglu=config)


@frozen
class _Early(Chain):
    """
    A chain whose SwiGLU has a config of its own.

    Attributes:
        swiglu: That config.
    """

    swiglu: SiluMulQuantizeConfig

    def activate(self, h: Tensor, pairs: Sorted, into: Buffers = NEW) -> Rows:
        """Do the same with its config."""
        return silu_mul_quantize(h, offs=pairs.offs, out=into.q, config=self.swiglu)


def steps(operands: Operands) -> dict[str, Callable[[], object]]:
    """Return each launch of the chain alone, on what the one before it left."""
    ours = chain(operands)
    pairs = ours.sort(operands.topk_ids)
    rows = ours.gather(operands.x, pairs)
    h = ours.gate_up(rows, pairs)
    active = ours.activate(h, pairs)
    y = ours.down(active, pairs)
    out = torch.empty_like(operands.x)
    into = Buffers(h=h, q=active[0], y=y)
    calls = (
        partial(ours.sort, operands.topk_ids),
        partial(ours.gather, operands.x, pairs),
        partial(ours.gate_up, rows, pairs, into),
        partial(ours.activate, h, pairs, into),
        partial(ours.down, active, pairs, into),
        partial(ours.combine, y, pairs, operands.topk_weights, None, out),
    )
    return dict(zip(STEPS, calls, strict=True))


def _ready(operands: Operands, ours: Chain) -> Ready:
    workspace = Workspace.of(operands.config, ours.weights, operands.case.tokens)
    out = torch.empty_like(operands.x)
    call = partial(
        ours.run_in_chunks,
        operands.x,
        operands.topk_weights,
        operands.topk_ids,
        None,
        out,
        workspace,
    )
    return Ready(call=call, result=lambda: out, weights=ours.weights)
