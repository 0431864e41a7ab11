# SPDX-License-Identifier: Apache-2.0
"""Small tensors for a call of every public function, and what makes the call with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import jitgen
import jitgen.torch
from jitgen import quantize
from jitgen.config import BLayout
from jitgen.formats.prepacked import PrepackedWeights

GROUPS, ROWS, N, K = 3, 24, 128, 256
TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 12, 4, 2, 256, 128

Tensors = dict[str, Tensor]


def normal(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)


def ends(device: str) -> Tensor:
    return torch.tensor([5, 5, ROWS], dtype=torch.int32, device=device)


def new(device: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def gemm(**options: Any) -> Callable[[Tensors], Any]:
    return lambda tensors: jitgen.grouped_gemm(**tensors, **options)  # type: ignore[arg-type]


def unscaled(device: str) -> Tensors:
    return {
        "a": normal(device, ROWS, K),
        "b": normal(device, GROUPS, N, K),
        "offs": ends(device),
    }


def float32(device: str) -> Tensors:
    found = unscaled(device)
    return found | {name: found[name].float() for name in ("a", "b")}


def scaled(name: str, device: str, *, masked: bool = False) -> Tensors:
    of_a, of_b = getattr(quantize, name), quantize.per_block
    if name == "per_row":
        of_b = quantize.per_row
    shape = (GROUPS, 8, K) if masked else (ROWS, K)
    a, a_scale = of_a(normal(device, *shape))
    b, b_scale = of_b(normal(device, GROUPS, N, K))
    found = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}
    if masked:
        counts = torch.tensor([8, 0, 3], dtype=torch.int32, device=device)
        return found | {"masked_m": counts}
    return found | {"offs": ends(device)}


def contiguous(device: str) -> Tensors:
    found = unscaled(device)
    indices = torch.full((256,), -1, dtype=torch.int32, device=device)
    indices[:20], indices[128:140] = 0, 2
    del found["offs"]
    return found | {"a": normal(device, 256, K), "m_indices": indices}


def nvfp4(device: str) -> Tensors:
    a, a_scale, over_a = quantize.nvfp4(normal(device, ROWS, K), offs=ends(device))
    b, b_scale, over_b = quantize.nvfp4(normal(device, GROUPS, N, K))
    scales = {"a_scale": a_scale, "b_scale": b_scale, "alpha": over_a * over_b}
    return {"a": a, "b": b, **scales, "offs": ends(device)}


def with_bias(found: Tensors) -> Tensors:
    device = found["a"].device
    return found | {"bias": torch.ones(GROUPS, N, device=device)}


def with_out(found: Tensors, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    device = next(iter(found.values())).device
    return found | {"out": torch.zeros(shape, dtype=dtype, device=device)}


def with_parts(found: Tensors, *shape: int, of_scale: tuple[int, ...] = ()) -> Tensors:
    """Return the tensors of a call, q of e4m3 and, of that shape, scales with rows contiguous."""
    device = found["x"].device
    parts = {"out[0]": torch.zeros(shape, dtype=torch.float8_e4m3fn, device=device)}
    if of_scale:
        parts["out[1]"] = torch.zeros(of_scale[::-1], device=device).movedim(-1, 0)
    return found | parts


def into(function: Callable[..., Any], **options: Any) -> Callable[[Tensors], Any]:
    """
    Return a function that calls `function` with its results written to the tensors named ``out[0]``
    (q) and, if there is one, ``out[1]`` (scales).
    """

    def run(tensors: Tensors) -> Any:
        given = {name: each for name, each in tensors.items() if not name.startswith("out[")}
        out = tensors["out[0]"], tensors.get("out[1]")
        return function(**given, **options, out=out)

    return run


def prepacked(layout: BLayout, device: str) -> Tensors:
    weights = quantize.prepack_mxfp4_from(normal("cpu", GROUPS, N, K).float(), layout=layout)
    a: Tensors = {"a": normal(device, ROWS, K)}
    if layout is not BLayout.WIDE1:
        q, scale = quantize.per_row(a["a"])
        a = {"a": q, "a_scale": scale}
    moved = weights.to(device)
    return a | {"b": moved.values, "b.factor": moved.factor, "offs": ends(device)}


def prepacked_gemm(layout: BLayout) -> Callable[[Tensors], Any]:
    def run(tensors: Tensors) -> Tensor:
        rest = {name: each for name, each in tensors.items() if not name.startswith("b.")}
        weights = PrepackedWeights(
            values=rest.pop("b"), factor=tensors["b.factor"], n=N, k=K, layout=layout
        )
        return jitgen.grouped_gemm(b=weights, **rest)  # type: ignore[arg-type]

    return run


def silu(device: str) -> Tensors:
    return {"x": normal(device, ROWS, 2 * N), "offs": ends(device)}


def silu_tensor(device: str) -> Tensors:
    return silu(device) | {"global_scale": torch.ones(1, device=device)}


def topk_ids(device: str) -> Tensor:
    ids = torch.arange(TOKENS * TOP_K, dtype=torch.int32).view(TOKENS, TOP_K) % EXPERTS
    return ids.to(device)


def pairs(device: str) -> Tensors:
    return dict(jitgen.sort_pairs(topk_ids(device), experts=EXPERTS)._asdict())


def permuted(device: str) -> Tensors:
    order = pairs(device)
    return {
        "x": normal(device, TOKENS, K),
        "permutation": order["permutation"],
        "offs": order["offs"],
        "inverse": order["inverse"],
    }


def combined(device: str) -> Tensors:
    return {
        "y": normal(device, TOKENS * TOP_K, N),
        "inverse": pairs(device)["inverse"],
        "topk_weights": torch.ones(TOKENS, TOP_K, device=device),
        "shared": normal(device, TOKENS, N),
    }


def fc2(device: str) -> Tensors:
    a, a_scale = quantize.per_token_group(normal(device, GROUPS, TOKENS, K))
    b, b_scale = quantize.per_block(normal(device, GROUPS, N, K))
    alpha = torch.ones(TOKENS, GROUPS, device=device)
    scales = {"a_scale": a_scale, "b_scale": b_scale, "router_weights": alpha}
    return {"a": a.transpose(0, 1), "b": b, **scales}


def wgrad(device: str) -> Tensors:
    return {"dy": normal(device, ROWS, N), "a": normal(device, ROWS, K), "offs": ends(device)}


def routed(device: str) -> Tensors:
    return {
        "logits": normal(device, TOKENS, EXPERTS).float(),
        "correction_bias": torch.zeros(EXPERTS, device=device),
    }


def route_out(device: str) -> Tensors:
    found = jitgen.route(**routed(device), top_k=TOP_K)  # type: ignore[arg-type]
    named = {f"out.{name}": torch.zeros_like(each) for name, each in found._asdict().items()}
    return routed(device) | named


def route(tensors: Tensors) -> Any:
    out = [each for name, each in tensors.items() if name.startswith("out.")]
    given = {name: each for name, each in tensors.items() if not name.startswith("out.")}
    into = jitgen.Routing(*out) if out else None
    # Renormalised weights have a constant sum, whose gradient is 0.
    return jitgen.route(**given, top_k=TOP_K, renormalize=False, out=into)  # type: ignore[arg-type]


def sorted_out(device: str) -> Tensors:
    named = {f"out.{name}": torch.zeros_like(each) for name, each in pairs(device).items()}
    return {"topk_ids": topk_ids(device)} | named


def sort(tensors: Tensors) -> Any:
    ids, *out = tensors.values()
    return jitgen.sort_pairs(ids, experts=EXPERTS, out=jitgen.Sorting(*out) if out else None)


def quantised_out(name: str, device: str) -> Tensors:
    x = normal(device, ROWS, K)
    q, scale, *_ = getattr(quantize, name)(x, offs=ends(device))
    found = {"x": x, "offs": ends(device)}
    if name == "nvfp4":
        found["global_scale"] = torch.full((1,), 2.0**-9, device=device)
    return found | {"out[0]": torch.zeros_like(q), "out[1]": torch.zeros_like(scale)}


def quantised(name: str) -> Callable[[Tensors], Any]:
    def run(tensors: Tensors) -> Any:
        out = [each for key, each in tensors.items() if key.startswith("out")]
        given = {key: each for key, each in tensors.items() if not key.startswith("out")}
        return getattr(quantize, name)(**given, out=tuple(out) if out else None)

    return run


def unpacked_out(device: str) -> Tensors:
    found = prepacked(BLayout.EXACT1, device)
    out = {
        "out[0]": new(device, GROUPS, N, K, dtype=torch.float8_e4m3fn),
        "out[1]": new(device, GROUPS, N, dtype=torch.float32),
    }
    return {"b": found["b"], "b.factor": found["b.factor"]} | out


def unpacked(tensors: Tensors) -> Any:
    values, factor, *out = tensors.values()
    weights = PrepackedWeights(values=values, factor=factor, n=N, k=K, layout=BLayout.EXACT1)
    return quantize.unpack_mxfp4(weights, out=tuple(out) if out else None)  # type: ignore[arg-type]


def layer(device: str) -> Tensors:
    w13, w13_scale = quantize.per_block(normal(device, EXPERTS, 2 * INTERMEDIATE, HIDDEN))
    w2, w2_scale = quantize.per_block(normal(device, EXPERTS, HIDDEN, INTERMEDIATE))
    return {
        "x": normal(device, TOKENS, HIDDEN),
        "w13": w13,
        "w2": w2,
        "topk_weights": torch.ones(TOKENS, TOP_K, device=device),
        "topk_ids": topk_ids(device),
        "w13_scale": w13_scale,
        "w2_scale": w2_scale,
    }


def activated(device: str) -> Tensors:
    return {
        "dy": normal(device, ROWS, N),
        "x": normal(device, ROWS, 2 * N),
        "weights": torch.ones(ROWS, device=device),
        "offs": ends(device),
    }


def activated_out(device: str) -> Tensors:
    return activated(device) | {
        "out[0]": new(device, ROWS, 2 * N),
        "out[1]": new(device, ROWS, N),
        "out[2]": new(device, ROWS, 1, dtype=torch.float32),
    }


def backward_into(tensors: Tensors) -> Any:
    given = {name: each for name, each in tensors.items() if not name.startswith("out")}
    out = tensors["out[0]"], tensors["out[1]"], tensors["out[2]"]
    return jitgen.activation_backward(**given, out=out)  # type: ignore[arg-type]


def adapted(device: str) -> Tensors:
    rank, adapters = 8, 2
    order = jitgen.sort_pairs(topk_ids(device), experts=EXPERTS)
    return {
        "y": normal(device, TOKENS * TOP_K, N),
        "x": normal(device, TOKENS, K),
        "a": normal(device, adapters, EXPERTS, rank, K),
        "b": normal(device, adapters, EXPERTS, N, rank),
        "scales": torch.ones(adapters, device=device),
        "adapter_ids": torch.zeros(TOKENS, dtype=torch.int32, device=device),
        "topk_ids": topk_ids(device),
        "permutation": order.permutation,
    }


def plain_layer(device: str) -> Tensors:
    return {
        "x": normal(device, TOKENS, HIDDEN),
        "w13": normal(device, EXPERTS, 2 * INTERMEDIATE, HIDDEN),
        "w2": normal(device, EXPERTS, HIDDEN, INTERMEDIATE),
        "topk_weights": torch.ones(TOKENS, TOP_K, device=device),
        "topk_ids": topk_ids(device),
        "w13_bias": normal(device, EXPERTS, 2 * INTERMEDIATE).float(),
        "w2_bias": normal(device, EXPERTS, HIDDEN).float(),
        "shared": normal(device, TOKENS, HIDDEN),
    }


def layer_out(device: str) -> Tensors:
    shared = {"shared": normal(device, TOKENS, HIDDEN)}
    return with_out(layer(device) | shared, TOKENS, HIDDEN)


def experts(device: str) -> Tensors:
    found = layer(device)
    del found["topk_weights"], found["topk_ids"]
    counts = torch.full((EXPERTS,), 8, dtype=torch.int32, device=device)
    return found | {"x": normal(device, EXPERTS, 8, HIDDEN), "masked_m": counts}


def torch_scaled(device: str) -> Tensors:
    a, scale_a = quantize.per_row(normal(device, ROWS, K))
    b, scale_b = quantize.per_row(normal(device, GROUPS, N, K))
    return {"mat_a": a, "mat_b": b.mT, "scale_a": scale_a, "scale_b": scale_b, "offs": ends(device)}


def torch_plain(device: str) -> Tensors:
    found = unscaled(device)
    return {"mat_a": found["a"], "mat_b": found["b"].mT, "offs": found["offs"]}


def of(function: Callable[..., Any], **options: Any) -> Callable[[Tensors], Any]:
    return lambda tensors: function(**tensors, **options)
