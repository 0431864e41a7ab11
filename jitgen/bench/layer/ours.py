# SPDX-License-Identifier: Apache-2.0
"""jitgen's chain of kernels for a layer, as a whole and step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.operands import (
    ADAPTERS,
    Operands,
    Ready,
    config_of,
    lora_of,
    names_of_router,
)
from jitgen.config import Arch
from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.protocol import ceil_div
from jitgen.layer import lora
from jitgen.layer import plan as plans
from jitgen.layer.chain import Chain
from jitgen.layer.early import ACTIVATION, EARLY_TOKENS, JOINED, joined_tokens, mean_rows
from jitgen.layer.early import ADAPTERS as ADDING
from jitgen.layer.lora import Adapters
from jitgen.layer.problems import joined_problem, of_rows
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Buffers, Workspace
from jitgen.ops.route.results import Sorting
from jitgen.runtime.session import select
from jitgen.targets.early import early

APART, LATE, LORA = "jitgen-apart", "jitgen-late", "jitgen-lora"

STEPS = ("sort", "gather", "gate and up", "swiglu", "down", "combine")
"""The launches of a chain, in order; for few tokens one launch replaces the first two."""

_JOINED_OPS = ("route", "permute_quantize")

ROUTE = "route"
"""The step that replaces the first one if there is a router."""


def chain(operands: Operands) -> Chain:
    """Return the chain of launches for the layer of a case, with scales of 128 x 128 blocks."""
    return Chain(config=operands.config, weights=operands.by_block)


def prepare(operands: Operands) -> Ready:
    """Return the chain as `jitgen.MoELayer` runs it, with its memory planned."""
    return _ready(operands, chain(operands))


def prepare_apart(operands: Operands) -> Ready:
    """Return the chain that sorts and gathers in two launches, even if there are few pairs."""
    return _ready(operands, replace(chain(operands), joins=False))


def prepare_lora(operands: Operands) -> Ready:
    """Return the chain with adapters of the experts, of which each token has one."""
    return _ready(operands, chain(operands), operands.adapters)


def prepare_late(operands: Operands) -> Ready:
    """
    Return the chain with the launches that the selector chooses, even if there are few tokens.
    """
    return _ready(operands, replace(chain(operands), starts_early=False))


ARCH = Arch.SM_90A
"""The target whose kernels the suite lists."""


def kernel_names(case: Case, arch: Arch = ARCH, *, has_lora: bool = False) -> Iterator[str]:
    """Yield the kernels of our sides of a case, for its number of tokens."""
    weights = without_memory(case.experts, case.intermediate, case.hidden)
    usual = Chain(config=config_of(case), weights=weights, joins=not case.of)
    chains = [usual]
    if JOINED in joined_names(usual, case.tokens, arch):
        chains.append(replace(usual, joins=False))
    if case.tokens <= EARLY_TOKENS:
        chains.append(replace(usual, starts_early=False))
    for each in chains:
        for name in names_of(each, case.tokens, arch):
            if not case.of or not name.startswith("route"):
                yield name
    if case.of:
        yield from names_of_router(case, arch)
    if has_lora:
        yield from names_of_lora(case, weights, arch)


def names_of_lora(case: Case, weights: ExpertWeights, arch: Arch) -> Iterator[str]:
    """Yield the kernels that a chain launches in addition for adapters."""
    config, is_early = config_of(case), case.tokens <= EARLY_TOKENS
    meta = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    for problem in lora.problems(
        config, weights, lora_of(case, partial(meta, ADAPTERS, case.experts))
    ):
        adding = select(problem.with_mean(case.tokens), arch).config
        yield (early(adding, arch) if is_early else adding).name(arch)
    rows = lora.activation_problem(config, weights).with_mean(mean_rows(config, case.tokens))
    activation = select(rows, arch).config
    yield (early(activation, arch) if is_early else activation).name(arch)


def names_of(usual: Chain, tokens: int, arch: Arch = ARCH) -> Iterator[str]:
    """Yield exactly the kernels of a chain for `tokens` tokens."""
    is_early = usual.starts_early and tokens <= EARLY_TOKENS
    joined = joined_names(usual, tokens, arch)
    late = replace(usual, starts_early=False)  # one range of rows, up to those of the tokens
    yield from joined.values()
    for sweep in plans.of(late, tokens, arch, name="bench").sweeps:
        problem = sweep.problem.with_mean(sweep.max_rows)
        config = select(problem, arch).config
        if getattr(problem, "has_shared", False) or (joined and problem.op in _JOINED_OPS):
            continue
        if "gate_up" in joined and problem.op == "grouped_gemm":
            joined.pop("gate_up")  # which is that one, and not early
            continue
        yield (early(config, arch) if is_early else config).name(arch)


def joined_names(usual: Chain, tokens: int, arch: Arch) -> dict[str, str]:
    """
    Return the names of the kernel that sorts and gathers, and of the one that follows it, by step;
    none if sorting and gathering are two launches.
    """
    config = usual.config
    joined = joined_problem(config, usual.weights, arch)
    is_joined = usual.starts_early and usual.joins and tokens <= joined_tokens(config)
    if joined is None or not is_joined:
        return {}
    product = next(iter(of_rows(config, usual.weights))).with_mean(mean_rows(config, tokens))
    problems = {JOINED: joined.with_mean(tokens), "gate_up": product}
    return {name: select(each, arch).config.name(arch) for name, each in problems.items()}


def without_memory(
    experts: int, intermediate: int, hidden: int, *, is_fp8: bool = True
) -> ExpertWeights:
    """Return weights that have sizes but no values, which is enough for a plan."""
    tensors: dict[str, Tensor] = {}
    for name, n, k in (("w13", 2 * intermediate, hidden), ("w2", hidden, intermediate)):
        dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
        tensors[name] = torch.empty(experts, n, k, dtype=dtype, device="meta")
        if is_fp8:
            blocks = ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK)
            tensors[f"{name}_scale"] = torch.empty(experts, *blocks, device="meta")
    return ExpertWeights(
        w13=tensors["w13"],
        w2=tensors["w2"],
        w13_scale=tensors.get("w13_scale"),
        w2_scale=tensors.get("w2_scale"),
    )


def steps(operands: Operands) -> dict[str, Callable[[], object]]:
    """Return each launch of the chain as a separate call on the results of the previous launch."""
    tokens, router = operands.case.tokens, operands.router
    apart = chain(operands).for_tokens(tokens, is_sorted=True)
    ours = apart if router is not None else chain(operands).for_tokens(tokens)
    pairs = apart.sort(operands.topk_ids) if router is None else Sorting(*router.route()[2:])
    rows = apart.gather(operands.x, pairs)
    h = ours.gate_up(rows, pairs)
    active = ours.activate(h, pairs)
    y = ours.down(active, pairs)
    out = torch.empty_like(operands.x)
    into = Buffers(a=(rows[0], None), h=h, q=(active[0], None), y=y)
    calls = (
        partial(apart.sort, operands.topk_ids) if router is None else partial(router.route),
        partial(apart.gather, operands.x, pairs, into),
        partial(ours.gate_up, rows, pairs, into),
        partial(ours.activate, h, pairs, into),
        partial(ours.down, active, pairs, into),
        partial(ours.combine, y, pairs, operands.topk_weights, None, out),
    )
    names = STEPS if router is None else (ROUTE, *STEPS[1:])
    found: dict[str, Callable[[], object]] = dict(zip(names, calls, strict=True))
    if JOINED in ours.configs:
        joined = partial(ours.sort_and_gather, operands.x, operands.topk_ids, into)
        found = {JOINED: joined, **found}
    return found


def steps_of_lora(operands: Operands) -> dict[str, Callable[[], object]]:
    """Return each launch that a chain has in addition for adapters."""
    adapters = operands.adapters
    ours = chain(operands).for_tokens(operands.case.tokens, lora=adapters.lora)
    pairs = ours.sort(operands.topk_ids)
    h = ours.gate_up(ours.gather(operands.x, pairs), pairs)
    active = ours.activation(h, pairs)
    y = ours.down(ours.activate(h, pairs), pairs)
    more = operands.topk_ids, pairs, operands.config
    up, down = (ours.configs.get(name) for name in ADDING)
    return {
        ADDING[0]: partial(adapters.add, "w13", h, operands.x, *more, up),
        ACTIVATION: partial(ours.activation, h, pairs),
        ADDING[1]: partial(adapters.add, "w2", y, active, *more, down),
    }


def _ready(operands: Operands, ours: Chain, adapters: Adapters | None = None) -> Ready:
    workspace = Workspace.of(operands.config, ours.weights, operands.case.tokens)
    out = torch.empty_like(operands.x)

    def run(topk_weights: Tensor, topk_ids: Tensor, sorting: Sorting | None = None) -> None:
        with workspace.lease() as lease:
            more = lease, sorting, None, adapters
            ours.run_in_chunks(operands.x, topk_weights, topk_ids, None, out, *more)

    call: Callable[[], object] = partial(run, operands.topk_weights, operands.topk_ids)
    if (router := operands.router) is not None:
        into = router.route()

        def call() -> None:
            routing = router.route(into)
            run(routing.topk_weights, routing.topk_ids, Sorting(*routing[2:]))

    return Ready(call=call, result=lambda: out, weights=ours.weights, adapters=adapters)
