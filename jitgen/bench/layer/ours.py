# SPDX-License-Identifier: Apache-2.0
"""jitgen's chain, whole and step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.operands import Operands, config_of
from jitgen.bench.layer.side import Ready
from jitgen.config import Arch
from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.protocol import ceil_div
from jitgen.layer import plan as plans
from jitgen.layer.chain import Chain
from jitgen.layer.early import EARLY_TOKENS
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Buffers, Workspace
from jitgen.runtime.session import select
from jitgen.targets.early import early

OURS, LATE = "jitgen", "jitgen-late"

STEPS = ("sort", "gather", "gate and up", "swiglu", "down", "combine")
"""The launches of a chain, in their order."""


def chain(operands: Operands) -> Chain:
    """Return the chain of a case."""
    return Chain(config=operands.config, weights=operands.by_block)


def prepare(operands: Operands) -> Ready:
    """Return the chain as `jitgen.MoELayer` runs it, with its memory planned."""
    return _ready(operands, chain(operands))


def prepare_late(operands: Operands) -> Ready:
    """Return the chain whose launches are the selector's, however few tokens there are."""
    return _ready(operands, replace(chain(operands), starts_early=False))


def kernel_names(case: Case, arch: Arch = Arch.SM_90A) -> Iterator[str]:
    """Yield the kernels that both sides of a case ask for: those of its number of tokens."""
    shape = (case.experts, 2 * case.intermediate, case.hidden)
    weights = ExpertWeights(**_without_memory("w13", *shape), **_without_memory("w2", *shape))
    usual = Chain(config=config_of(case), weights=weights)
    for is_early in dict.fromkeys((case.tokens <= EARLY_TOKENS, False)):
        late = replace(usual, starts_early=False)  # one range of rows, up to those of the case
        for sweep in plans.of(late, case.tokens, arch, name="bench").sweeps:
            problem = sweep.problem.with_mean(sweep.max_rows)
            config = select(problem, arch).config
            if not getattr(problem, "has_shared", False):
                yield (early(config, arch) if is_early else config).name(arch)


def _without_memory(name: str, experts: int, twice: int, hidden: int) -> dict[str, Any]:
    """Return a matrix of every expert and its scales, as far as plans look at them."""
    n, k = (twice, hidden) if name == "w13" else (hidden, twice // 2)
    q = torch.empty(experts, n, k, dtype=torch.float8_e4m3fn, device="meta")
    scale = torch.empty(experts, ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK), device="meta")
    return {name: q, f"{name}_scale": scale}


def steps(operands: Operands) -> dict[str, Callable[[], object]]:
    """Return each launch of the chain alone, on what the one before it left."""
    ours = chain(operands).for_tokens(operands.case.tokens)
    pairs = ours.sort(operands.topk_ids)
    rows = ours.gather(operands.x, pairs)
    h = ours.gate_up(rows, pairs)
    active = ours.activate(h, pairs)
    y = ours.down(active, pairs)
    out = torch.empty_like(operands.x)
    into = Buffers(a=rows[0], h=h, q=active[0], y=y)
    calls = (
        partial(ours.sort, operands.topk_ids),
        partial(ours.gather, operands.x, pairs, into),
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
