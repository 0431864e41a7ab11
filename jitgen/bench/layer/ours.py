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
from jitgen.bench.layer.router import kernel_names as names_of_router
from jitgen.bench.layer.side import Ready
from jitgen.config import Arch
from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.protocol import ceil_div
from jitgen.layer import plan as plans
from jitgen.layer.chain import Chain
from jitgen.layer.early import EARLY_TOKENS
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Buffers, Workspace
from jitgen.ops.route.results import Sorting
from jitgen.runtime.session import select
from jitgen.targets.early import early

OURS, LATE = "jitgen", "jitgen-late"

STEPS = ("sort", "gather", "gate and up", "swiglu", "down", "combine")
"""The launches of a chain, in their order."""

ROUTE = "route"
"""What takes the place of the first one behind a router."""


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
    weights = without_memory(case.experts, case.intermediate, case.hidden)
    usual = Chain(config=config_of(case), weights=weights)
    chains = [usual]
    if case.tokens <= EARLY_TOKENS:
        chains.append(replace(usual, starts_early=False))
    for each in chains:
        for name in names_of(each, case.tokens, arch):
            if not case.of or not name.startswith("route"):
                yield name
    if case.of:
        yield from names_of_router(case, arch)


def names_of(usual: Chain, tokens: int, arch: Arch = Arch.SM_90A) -> Iterator[str]:
    """Yield the kernels that a chain asks for with so many tokens, and no others."""
    is_early = usual.starts_early and tokens <= EARLY_TOKENS
    late = replace(usual, starts_early=False)  # one range of rows, up to those of the tokens
    for sweep in plans.of(late, tokens, arch, name="bench").sweeps:
        problem = sweep.problem.with_mean(sweep.max_rows)
        config = select(problem, arch).config
        if not getattr(problem, "has_shared", False):
            yield (early(config, arch) if is_early else config).name(arch)


def without_memory(
    experts: int, intermediate: int, hidden: int, *, is_fp8: bool = True
) -> ExpertWeights:
    """Return weights with sizes and nothing in them, as far as plans look at them."""
    tensors: dict[str, Any] = {}
    for name, n, k in (("w13", 2 * intermediate, hidden), ("w2", hidden, intermediate)):
        dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
        tensors[name] = torch.empty(experts, n, k, dtype=dtype, device="meta")
        if is_fp8:
            blocks = ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK)
            tensors[f"{name}_scale"] = torch.empty(experts, *blocks, device="meta")
    return ExpertWeights(**tensors)


def steps(operands: Operands) -> dict[str, Callable[[], object]]:
    """Return each launch of the chain alone, on what the one before it left."""
    ours = chain(operands).for_tokens(operands.case.tokens)
    router = operands.router
    pairs = ours.sort(operands.topk_ids) if router is None else Sorting(*router.route()[2:])
    rows = ours.gather(operands.x, pairs)
    h = ours.gate_up(rows, pairs)
    active = ours.activate(h, pairs)
    y = ours.down(active, pairs)
    out = torch.empty_like(operands.x)
    into = Buffers(a=rows[0], h=h, q=active[0], y=y)
    calls = (
        partial(ours.sort, operands.topk_ids) if router is None else partial(router.route),
        partial(ours.gather, operands.x, pairs, into),
        partial(ours.gate_up, rows, pairs, into),
        partial(ours.activate, h, pairs, into),
        partial(ours.down, active, pairs, into),
        partial(ours.combine, y, pairs, operands.topk_weights, None, out),
    )
    names = STEPS if router is None else (ROUTE, *STEPS[1:])
    return dict(zip(names, calls, strict=True))


def _ready(operands: Operands, ours: Chain) -> Ready:
    workspace = Workspace.of(operands.config, ours.weights, operands.case.tokens)
    out = torch.empty_like(operands.x)
    run, given = ours.run_in_chunks, (operands.topk_weights, operands.topk_ids)
    call: Callable[[], object] = partial(run, operands.x, *given, None, out, workspace)
    if (router := operands.router) is not None:
        into = router.route()

        def call() -> None:
            routing = router.route(into)
            ids = routing.topk_weights, routing.topk_ids
            run(operands.x, *ids, None, out, workspace, Sorting(*routing[2:]))

    return Ready(call=call, result=lambda: out, weights=ours.weights)
