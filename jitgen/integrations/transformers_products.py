# SPDX-License-Identifier: Apache-2.0
"""
Transformers' modules of experts as products with gradients, and torch's operations between them.

It serves calls for which there is no chain: training, of all weights or of other parts of the model
(adapters, the router); float16 weights, and float32 weights on a CPU; torch.autocast; and modules
of every kind in transformers: transposed weights, a bias, experts without a gate, a norm after
experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from jitgen.config import Arch, BLayout, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.route import RouteProblem, Scoring
from jitgen.errors import InputError
from jitgen.formats.protocol import OF_TORCH
from jitgen.integrations.transformers_chains import beyond_fp8, has_gate, names_of
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.route.call import sort_pairs
from jitgen.plans.sweep import Sweep
from jitgen.runtime import devices
from jitgen.runtime.session import current
from jitgen.targets.legality import rules

if TYPE_CHECKING:
    from jitgen.targets.gemm import GemmRules

_DEVICES = ("cpu", "cuda")
"""Devices that autocast supports. While an image is built, a model is on none of them."""


def computed_in(weight: Tensor) -> torch.dtype:
    """
    Return the type in which products with `weight` are computed: that of autocast if it is on.
    """
    kind = weight.device.type
    is_cast = kind in _DEVICES and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_cast else weight.dtype


def forward(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """
    Compute a module of experts.

    Args:
        module: The module.
        hidden_states: (T, H), any float type.
        top_k_index: (T, k): experts of each token; experts that are not on this device are skipped.
        top_k_weights: (T, k), any float type.

    Returns:
        (T, H) of the type of `hidden_states`, in autograd's graph if an operand needs a gradient.

    Raises:
        InputError: The weights are of a type for which this device has no kernels.
    """
    first, second = names_of(module)
    weight = getattr(module, first)
    groups, top_k = weight.shape[0], top_k_index.shape[-1]
    dtype = computed_in(weight)
    if not torch.compiler.is_compiling():  # where the product says it
        _require_kernels(module, dtype, devices.find(weight.device, current.get(), "model").arch)
    pairs = sort_pairs(
        top_k_index.to(torch.int32).contiguous(),
        experts=max(groups, top_k),
        local_experts=groups,
    )
    # Rows of no expert are behind all others. What is between the products may have weights of its
    # own, whose gradients would get what happens to be there.
    rest = (pairs.permutation < 0)[:, None] if module._is_expert_parallel else None
    rows = _applied(_Gathered, hidden_states.to(dtype), pairs.permutation, pairs.inverse)
    h = _without(rest, _product(module, first, rows, pairs.offs))
    active = module._apply_gate(h) if has_gate(module) else module.act_fn(h)
    y = _without(rest, _product(module, second, active.to(dtype), pairs.offs))
    if getattr(module, "has_post_expert_norm", False):
        y = module.post_expert_norm(y)
    weights = top_k_weights.float()
    found = _applied(_Weighted, y, weights, pairs.permutation, pairs.inverse)
    return found.to(hidden_states.dtype)


def sweeps(module: Any, top_k: int, max_tokens: int, arch: Arch) -> Iterator[Sweep]:
    """
    Yield the problems of a module's forward on a target, with at most `max_tokens` tokens.

    Raises:
        InputError: The weights are of a type for which the target has no kernels.
    """
    names = names_of(module)
    first = getattr(module, names[0])
    groups = first.shape[0]
    _require_kernels(module, computed_in(first), arch)
    experts = max(groups, top_k)
    route = RouteProblem(
        m=1, experts=experts, top_k=top_k, scoring=Scoring.GIVEN, local_experts=groups
    )
    yield Sweep(problem=route, min_rows=1, max_rows=max_tokens)
    most = max(1, -(-max_tokens * top_k // experts))
    for name in names:
        weight = getattr(module, name)
        dtype = OF_TORCH[computed_in(weight)]
        k, n = weight.shape[1:] if _is_transposed(module) else weight.shape[:0:-1]
        yield Sweep(
            problem=GroupedGemmProblem(
                layout=Layout.RAGGED,
                groups=groups,
                m=groups,
                n=n,
                k=k,
                a_dtype=dtype,
                out_dtype=dtype,
                scale_granularity=ScaleGranularity.TENSOR,
                b_layout=BLayout.N_MAJOR if _is_transposed(module) else BLayout.PLAIN,
                bias=getattr(module, "has_bias", False),
            ),
            min_rows=1,
            max_rows=most,
        )


def _is_transposed(module: Any) -> bool:
    return bool(getattr(module, "is_transposed", False))


def _require_kernels(module: Any, dtype: torch.dtype, arch: Arch) -> None:
    """
    Check that the target has kernels for the weights in `dtype`, and that they have no scales.
    """
    name, of_weights = type(module).__name__, getattr(module, names_of(module)[0]).dtype
    if of_weights.itemsize == 1:
        other = [f" with {name} = {value}" for name, value in beyond_fp8(module).items()]
        if of_weights is torch.float8_e4m3fn and not other:
            raise InputError(
                "experts_implementation",
                f"float8_e4m3fn experts have no gradients ({name}): call the model under "
                "torch.no_grad(), as generate() does, or train bfloat16 ones",
            )
        raise InputError(
            "experts_implementation",
            f"jitgen has no kernels for experts of {of_weights}{''.join(other)} ({name}): take "
            "grouped_mm for this model",
        )
    gemm = cast("GemmRules", rules(arch, "grouped_gemm"))
    if OF_TORCH.get(dtype) not in gemm.space.of_a:
        raise InputError(
            "experts_implementation",
            f"{arch} has no kernels for products of {dtype} ({name}): load the model in bfloat16, "
            "use torch.autocast, or take grouped_mm for it",
        )


def _product(module: Any, name: str, rows: Tensor, offs: Tensor) -> Tensor:
    """Return the rows of each expert times its matrix, with its bias."""
    weight = getattr(module, name).to(rows.dtype)
    matrices = weight.transpose(1, 2) if _is_transposed(module) else weight
    if 1 not in matrices.stride()[1:]:  # computed ones, say
        matrices = matrices.contiguous()
    bias = getattr(module, f"{name}_bias") if getattr(module, "has_bias", False) else None
    return grouped_gemm(
        rows.contiguous(),
        matrices,
        offs=offs,
        bias=None if bias is None else bias.float(),
        out_dtype=rows.dtype,
    )


def _applied(node: Any, *given: Tensor) -> Tensor:
    """Return the result of a node of autograd's graph for the tensors `given`."""
    found: Tensor = node.apply(*given)
    return found


def _without(rest: Tensor | None, rows: Tensor) -> Tensor:
    return rows if rest is None else rows.masked_fill(rest, 0.0)


def _picked(rows: Tensor, inverse: Tensor) -> Tensor:
    """Return the row of each pair, (T, k, H); zeros for pairs without a row."""
    found = rows.index_select(0, inverse.clamp(min=0).flatten())
    return found.view(*inverse.shape, rows.shape[1]).masked_fill((inverse < 0)[..., None], 0.0)


class _Gathered(Function):
    """
    Node of autograd's graph: the token of each row. A token's gradient is the sum over its rows, in
    float32, in order.
    """

    @staticmethod
    def forward(x: Tensor, permutation: Tensor, inverse: Tensor) -> Tensor:
        """Return (T * k, H); rows of no expert contain the values of an arbitrary token."""
        return x.index_select(0, permutation.clamp(min=0) // inverse.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the places of each token's rows for the gradient."""
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x."""
        (drows,) = found
        (inverse,) = ctx.saved_tensors
        dx = _picked(drows, inverse).sum(1, dtype=torch.float32).to(drows.dtype)
        return dx, None, None


class _Weighted(Function):
    """
    Node of autograd's graph: the weighted sum of each token's rows, in float32. The gradient
    gathers rows and needs no atomic additions.
    """

    @staticmethod
    def forward(y: Tensor, weights: Tensor, _permutation: Tensor, inverse: Tensor) -> Tensor:
        """Return the sums, (T, H) float32."""
        return (_picked(y, inverse) * weights[..., None]).sum(1, dtype=torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the tensors that both gradients need."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of y, which is 0 in rows of no expert, and that of the weights."""
        (dout,) = found
        y, weights, permutation, inverse = ctx.saved_tensors
        dy = dweights = None
        if ctx.needs_input_grad[0]:
            pairs = permutation.clamp(min=0)
            factors = weights.flatten()[pairs].masked_fill(permutation < 0, 0.0)
            dy = (dout[pairs // inverse.shape[1]] * factors[:, None]).to(y.dtype)
        if ctx.needs_input_grad[1]:
            dweights = (_picked(y, inverse) * dout[:, None]).sum(-1, dtype=torch.float32)
        return dy, dweights, None, None
