# SPDX-License-Identifier: Apache-2.0
"""
Other implementations of a whole layer.

*DeepGEMM*: its products, with the other steps in Triton as in serving engines. In the masked layout
each expert has a matrix with room for every token; in the contiguous layout the rows of each expert
begin at a multiple of 128. Which layout is faster depends on the number of tokens, so both are
measured if memory suffices.

*torch*: the same steps compiled by inductor, with ``torch._scaled_grouped_mm`` for the products.
This only supports one scale for each row, so its numerics differ and there is less work.

*vLLM*: its fused experts, with both products in its Triton kernel and its CUDA operations for the
other steps. The kernel's tiles are those of vLLM's table for this GPU, these experts and sizes. If
vLLM has no such table, it uses its default, as in serving, and the note of the case says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.glue import route
from jitgen.bench.layer.operands import Operands, Ready
from jitgen.bench.peers import Unavailable, imported, require
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.formats.block128 import FORMAT
from jitgen.formats.e4m3 import MAX
from jitgen.formats.protocol import Rows, ceil_div
from jitgen.layer.weights import ExpertWeights

MASKED, CONTIGUOUS = "deep-gemm-masked", "deep-gemm-contiguous"
DEEP_GEMM_NOTE = "same numerics; glue in Triton, all of it replayed as one graph"

_MOST_MASKED_ROWS = 2**17
"""
Most rows of all experts together; with more, this layout needs too much memory to be used in
practice.
"""

_TILE_ROWS = 128
"""
The rows of a masked matrix are a multiple of this: DeepGEMM stores whole tiles of up to 128 rows,
and a tile that reached beyond its matrix would overwrite the next expert's rows.
"""

_NAMES = {
    MASKED: ("m_grouped_fp8_gemm_nt_masked", "m_grouped_fp8_fp4_gemm_nt_masked"),
    CONTIGUOUS: ("m_grouped_fp8_gemm_nt_contiguous",),
}

_NO_ROUTER = "the glue begins with experts that are chosen and all here"

Product = Callable[[tuple[Tensor, Tensor], tuple[Any, Any], Tensor, Tensor, int], object]
"""
Arguments: rows and weights with their scales, the result, counts or owners of rows, and expected
rows.
"""


def prepare_masked(operands: Operands) -> Ready:
    """
    Return the layer with a matrix for each expert.

    Raises:
        Unavailable: DeepGEMM or Triton is not installed, the case has a router, or matrices would
            be too large.
    """
    return masked(operands, _deep_gemm(MASKED))


def prepare_contiguous(operands: Operands) -> Ready:
    """
    Return the layer with experts at multiples of 128 rows.

    Raises:
        Unavailable: DeepGEMM or Triton is not installed, the case has a router, or the number of
            experts is no power of two.
    """
    product = _deep_gemm(CONTIGUOUS)
    return contiguous(operands, lambda a, b, out, owners, _: product(a, b, out, owners))


def _deep_gemm(kind: str) -> Any:
    """
    Return DeepGEMM's grouped product for the layout `kind`.

    Raises:
        Unavailable: DeepGEMM is not installed, or has no such function.
    """
    module = imported("deep_gemm")
    for name in _NAMES[kind]:
        if hasattr(module, name):
            return getattr(module, name)
    raise Unavailable(f"this deep_gemm has no {_NAMES[kind][0]}")


def masked(operands: Operands, product: Product) -> Ready:
    """Return the layer with a matrix for each expert, multiplied by `product`."""
    glue = _glue()
    require(operands.router is None, _NO_ROUTER)
    case, x = operands.case, operands.x
    height = ceil_div(case.tokens, _TILE_ROWS) * _TILE_ROWS
    fits = case.experts * height <= _MOST_MASKED_ROWS
    require(fits, f"{case.experts} matrices of {height} rows are too large")
    counts = x.new_empty(case.experts, dtype=torch.int32)
    place = partial(glue.place_masked, operands.topk_ids, counts, height=height)
    return _glued(operands, (case.experts, height), counts, place, product)


def contiguous(operands: Operands, product: Product) -> Ready:
    """Return the layer with experts at multiples of 128 rows, multiplied by `product`."""
    glue = _glue()
    require(operands.router is None, _NO_ROUTER)
    case, x = operands.case, operands.x
    is_power = not case.experts & (case.experts - 1)
    require(is_power, f"the glue counts powers of two of experts, not {case.experts}")
    tiles = min(case.rows, case.rows // GROUP_ALIGNMENT + case.experts)
    owners = x.new_empty(tiles * GROUP_ALIGNMENT, dtype=torch.int32)
    counts = glue.new_counts(case.experts, x.device)
    place = partial(glue.place_contiguous, operands.topk_ids, counts, owners=owners)
    return _glued(operands, (len(owners),), owners, place, product)


def _glued(
    operands: Operands,
    front: tuple[int, ...],
    groups: Tensor,
    give_places: Callable[[Tensor], object],
    product: Product,
) -> Ready:
    """Return a side of the six or seven launches of a layer, with separate memory."""
    glue = _glue()
    case, x, weights = operands.case, operands.x, operands.by_block
    fp8, bf16 = torch.float8_e4m3fn, torch.bfloat16
    rows = Rows(front)
    place = x.new_zeros(case.rows, dtype=torch.int32)
    a, a_scale = x.new_empty((*front, case.hidden), dtype=fp8), FORMAT.new_a(x, rows, case.hidden)
    h = x.new_empty((*front, 2 * case.intermediate), dtype=bf16)
    q = x.new_empty((*front, case.intermediate), dtype=fp8)
    q_scale = FORMAT.new_a(x, rows, case.intermediate)
    y = x.new_empty((*front, case.hidden), dtype=bf16)
    out = torch.empty_like(x)
    mean = max(1, ceil_div(case.rows, case.experts))

    def call() -> None:
        give_places(place)
        glue.gather(x, place, a, a_scale, case.top_k)
        product((a, a_scale), (weights.w13, weights.w13_scale), h, groups, mean)
        glue.swiglu(h, place, q, q_scale)
        product((q, q_scale), (weights.w2, weights.w2_scale), y, groups, mean)
        glue.combine(y, place, operands.topk_weights, out)

    return Ready(call=call, result=lambda: out, weights=weights)


def _glue() -> Any:
    """
    Return the module with the Triton kernels between DeepGEMM's products.

    Raises:
        Unavailable: Triton is not installed.
    """
    return imported("jitgen.bench.layer.glue", "Triton")


INDUCTOR = "torch-inductor"
INDUCTOR_NOTE = "torch._scaled_grouped_mm: row-wise scales, other numerics, less work"

Multiply = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""
A grouped product. Its arguments are rows, (G, K, N) weights, both scales, and ends of the groups.
"""


def prepare_inductor(operands: Operands) -> Ready:
    """
    Return the layer compiled by inductor.

    Raises:
        Unavailable: This torch has no grouped product.
    """
    if not hasattr(torch, "_scaled_grouped_mm"):
        raise Unavailable("this torch has no _scaled_grouped_mm")
    torch._dynamo.reset()
    compiled = torch.compile(torch_layer, dynamic=False, fullgraph=True)
    weights = operands.by_row
    given = (operands.x, operands.topk_weights, operands.topk_ids, *matrices(weights))
    if (router := operands.router) is not None:
        compiled = torch.compile(
            partial(torch_routed, **router.choice), dynamic=False, fullgraph=True
        )
        given = (operands.x, router.logits, router.bias, *matrices(weights))
    found: list[Tensor] = []

    def call() -> None:
        found[:] = [compiled(*given)]

    return Ready(call=call, result=lambda: found[0], weights=weights)


def multiply(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, offs: Tensor) -> Tensor:
    """Return torch's grouped product of FP8 operands with scales of rows, (M, N) bfloat16."""
    return torch._scaled_grouped_mm(
        a, b, a_scale, b_scale, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def torch_layer(  # tensors, and options that vary
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    w13: Tensor,
    w2: Tensor,
    s13: Tensor,
    s2: Tensor,
    product: Multiply = multiply,
    *,
    is_share: bool = False,
) -> Tensor:
    """
    Return the layer's result with torch's operations, (T, H) bfloat16: sort, gather, quantise,
    multiply, gate, quantise, multiply, add up.
    """
    tokens, top_k = topk_ids.shape
    experts, order = topk_ids.reshape(-1).sort(stable=True)
    numbers = torch.arange(w13.shape[0], device=x.device, dtype=torch.int32)
    offs = torch.searchsorted(experts, numbers, right=True).to(torch.int32)
    a, a_scale = _quantised(x[order // top_k].float())
    h = product(a, w13.transpose(1, 2), a_scale, s13, offs)
    gate, up = h.float().chunk(2, dim=-1)
    q, q_scale = _quantised(torch.nn.functional.silu(gate) * up)
    y = product(q, w2.transpose(1, 2), q_scale, s2, offs)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=x.device)
    found = y[inverse].view(tokens, top_k, -1).float() * topk_weights.unsqueeze(-1)
    if is_share:  # rows behind the last group's were not written
        found = torch.where((topk_ids < w13.shape[0]).unsqueeze(-1), found, 0.0)
    return found.sum(1).to(torch.bfloat16)


def torch_routed(  # likewise
    x: Tensor,
    logits: Tensor,
    bias: Tensor,
    w13: Tensor,
    w2: Tensor,
    s13: Tensor,
    s2: Tensor,
    product: Multiply = multiply,
    *,
    local_experts: int,
    **choice: Any,
) -> Tensor:
    """
    Return the layer's result from logits with torch's operations; pairs whose expert is on another
    device add nothing.
    """
    topk_weights, topk_ids, *_ = route.routed(logits, bias, **choice)
    is_share = local_experts < logits.shape[1]
    return torch_layer(x, topk_weights, topk_ids, w13, w2, s13, s2, product, is_share=is_share)


def _quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().amax(-1).clamp_min(1e-12) / MAX
    return (values / scale.unsqueeze(-1)).clamp(-MAX, MAX).to(torch.float8_e4m3fn), scale


def matrices(weights: ExpertWeights) -> tuple[Any, Any, Any, Any]:
    """Return both matrices of every expert, and the scales of their rows."""
    return weights.w13, weights.w2, weights.w13_scale, weights.w2_scale


VLLM = "vllm-triton"
VLLM_NOTE = "same numerics; vLLM's fused_experts, replayed as a graph"

_PACKAGE = "vllm.model_executor.layers.fused_moe"


def prepare_vllm(operands: Operands) -> Ready:
    """
    Return the layer as vLLM computes it.

    Raises:
        Unavailable: vLLM cannot be imported, or has its fused experts in another module.
    """
    fused_experts = _vllm("fused_moe", "fused_experts")
    quant_config = _vllm("config", "fp8_w8a8_moe_quant_config")
    tables = _vllm("fused_moe", "get_moe_configs")
    weights, case = operands.by_block, operands.case
    config = quant_config(
        w1_scale=weights.w13_scale,
        w2_scale=weights.w2_scale,
        block_shape=[SCALE_BLOCK, SCALE_BLOCK],
    )
    has_table = tables(case.experts, case.intermediate, "fp8_w8a8", SCALE_BLOCK, SCALE_BLOCK)
    found: list[Tensor] = []

    choose, share = _router(operands)

    def call() -> None:
        given = (operands.x, weights.w13, weights.w2, *choose())
        found[:] = [fused_experts(*given, quant_config=config, **share)]

    return Ready(
        call=call,
        result=lambda: found[0],
        weights=weights,
        note="" if has_table else "vLLM has no table for these sizes on this GPU: its default",
    )


def _router(operands: Operands) -> tuple[Callable[[], tuple[Tensor, Tensor]], dict[str, Any]]:
    """
    Return a function that returns the weights and experts of tokens, and the arguments that tell
    vLLM which experts are on this device.
    """
    router, case = operands.router, operands.case
    if router is None:
        return lambda: (operands.topk_weights, operands.topk_ids), {}
    choice = router.choice
    numbers = torch.arange(case.of, dtype=torch.int32, device=operands.x.device)
    choose = partial(
        _vllm("router.grouped_topk_router", "fused_grouped_topk"),
        operands.x,
        router.logits,
        choice["top_k"],
        renormalize=True,
        e_score_correction_bias=router.bias,
        num_expert_group=choice["expert_groups"],
        topk_group=choice["top_groups"],
        scoring_func=choice["scoring"],
        routed_scaling_factor=choice["routed_scaling_factor"],
    )
    here = torch.where(numbers < case.experts, numbers, -1)
    return choose, {"global_num_experts": case.of, "expert_map": here}


def _vllm(module: str, name: str) -> Any:
    """
    Return a function of vLLM's.

    Raises:
        Unavailable: The function cannot be imported, or vLLM's CUDA operations cannot be loaded.
    """
    # vLLM logs to standard output unless told otherwise, where the JSON goes
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    found = imported(f"{_PACKAGE}.{module}", "vLLM")
    require(hasattr(found, name), f"this vLLM has no {name} in {_PACKAGE}.{module}")
    for library, operation in (("_C", "silu_and_mul"), ("_moe_C", "moe_align_block_size")):
        # vLLM warns where its libraries cannot be loaded, and fails at the first call
        is_loaded = hasattr(getattr(torch.ops, library), operation)
        require(is_loaded, f"vLLM's own operations cannot be loaded: {library}.{operation}")
    return getattr(found, name)
