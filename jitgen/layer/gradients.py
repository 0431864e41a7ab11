# SPDX-License-Identifier: Apache-2.0
"""
Gradients of a layer of bfloat16 experts: the whole chain is one node of autograd's graph.

    forward    a = rows of x    h = a . w13    q = act(h)    y = q . w2    out = combine(y)
    backward   g = rows of dout, gathered as the rows of x are
               dq = g . w2                      without the weight of its pair
               dh, wq, sums                     one launch: activation_backward
               dw2 = g of each group . wq       dw13 = dh of each group . a
               da = dh . w13                    dx = da combined, every weight 1
               dtopk_weights = the sums of each pair

So the backward pass of the gather is a combine, and that of the combine is a gather. The node saves
x, h and the weights; the backward pass gathers a, and computes the activation, again. The weights
of pairs are multiplied with the gradient of the activation, (rows, I), which is smaller than (rows,
H), and their gradient is computed there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_dynamo_compiling

from jitgen.config.activation_quantize import NUMBERS
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights
from jitgen.ops.activation_backward.call import activation_backward
from jitgen.ops.combine import gradients as of_combine
from jitgen.ops.combine.call import combine
from jitgen.ops.dispatcher import is_traced, refuse_tangents
from jitgen.ops.grouped_gemm import gradients
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.permute_quantize.call import permute_quantize
from jitgen.ops.route.results import Sorting
from jitgen.ops.tensors import needs_gradient, refuse_gradients
from jitgen.ops.tracing import nodes
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime.session import current

_TENSORS = ("x", "topk_weights", "w13", "w2", "offs", "permutation", "inverse")
_OPTIONAL = ("w13_bias", "w2_bias", "shared", "shared_weights")
_NAMES = (*_TENSORS, *_OPTIONAL, "experts", "activation", "interleaved", *NUMBERS)
_NAMES += ("min_latency", "numerics")

_SCHEMA = (
    "moe("
    + "".join(f"Tensor {name}, " for name in _TENSORS)
    + "".join(f"Tensor? {name}, " for name in _OPTIONAL)
    + "int experts, str activation, bool interleaved, "
    + "".join(f"float? {name}, " for name in NUMBERS)
    + "bool? min_latency, str? numerics) -> (Tensor, Tensor)"
)

_OP = "moe"

_Groups = tuple[int, Mapping[str, Tensor], int | None]
"""Number of groups, the argument that gives groups their rows, and the expected rows of a group."""

_PARTS = 3
"""Number of bfloat16 numbers whose sum has all bits of a float32 number."""


def require_differentiable(given: Mapping[str, object], weights: ExpertWeights) -> None:
    """
    Check that every gradient that autograd needs exists.

    Args:
        given: Tensors of a call by their names.
        weights: The experts.

    Raises:
        InputError: Autograd needs a gradient that does not exist; the message has advice.
    """
    if not needs_gradient(given.values()):
        return
    why = advice = ""
    if weights.is_quantised:
        why = "quantised experts have none"
        advice = "train with bfloat16 weights and quantise them for inference, "
    elif weights.group_numbers is not None:
        why = "activations with numbers of each group have none"
        advice = "give all experts the same numbers, "
    elif given.get("out") is not None:
        why, advice = "what is written to out has none", "leave out `out`, "
    if why:
        refuse_gradients(given, _OP, why, advice)


def run(
    chain: Chain,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    shared: Tensor | None,
    sorting: Sorting | None,
    shared_weights: Tensor | None,
) -> Tensor:
    """
    Run the chain for a call from which autograd needs a gradient, with all tokens in one pass.

    Args:
        chain: The chain, of bfloat16 weights.
        x: (T, H) bfloat16.
        topk_weights: (T, k) float32.
        topk_ids: (T, k) int32.
        shared: (T, H) bfloat16, added at the end.
        sorting: The sorting of the pairs, if known.
        shared_weights: (T,) float32, factors of the rows of `shared`.

    Returns:
        (T, H) bfloat16, in autograd's graph.
    """
    config, weights = chain.config, chain.weights
    pairs = chain.sort(topk_ids) if sorting is None else sorting
    if config.adds_tokens:
        shared, shared_weights = x, chain.token_weights(topk_weights, topk_ids)
    values = (
        *(x, topk_weights, weights.w13, weights.w2, *pairs),
        *(weights.w13_bias, weights.w2_bias, shared, shared_weights),
        *(config.every, *config.gate.values(), config.min_latency, config.numerics),
    )
    if is_dynamo_compiling():
        from jitgen.layer.compiled import layer

        return layer(values)
    if is_traced(values):
        found, _ = operation()(*values)
    else:
        named = dict(zip(_NAMES, values, strict=True))
        refuse_tangents(named)
        found, _ = MOE.applied(_forward, named)
    return found  # type: ignore[no-any-return]


@cache
def operation() -> Any:
    """Return torch's operation for a layer that trains; it is registered at the first call."""
    return register(
        Operation(schema=_SCHEMA, run=_forward, fake=_fake, names=_NAMES, autograd=MOE.called)
    )


def _forward(*values: Any) -> tuple[Tensor, Tensor]:
    """Return the result of the layer, and that of its first product, which gradients need."""
    named = dict(zip(_NAMES, values, strict=True))
    chain, pairs = _chain(named), Sorting(*(named[name] for name in Sorting._fields))
    h = chain.gate_up(chain.gather(named["x"], pairs), pairs)
    y = chain.down(chain.activate(h, pairs), pairs)
    added = named["shared"], None, named["shared_weights"]
    return chain.combine(y, pairs, named["topk_weights"].contiguous(), *added), h


def _fake(*values: Any) -> tuple[Tensor, Tensor]:
    named = dict(zip(_NAMES, values, strict=True))
    x, w13, inverse = named["x"], named["w13"], named["inverse"]
    return x.new_empty(x.shape), x.new_empty((inverse.numel(), w13.shape[1]))


def _chain(named: Mapping[str, Any]) -> Chain:
    """Return the chain of the operation's arguments."""
    weights = ExpertWeights(**{name: named[name] for name in ("w13", "w2", "w13_bias", "w2_bias")})
    config = MoEConfig(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        top_k=named["inverse"].shape[1],
        local_experts=weights.groups,
        **{name: named[name] for name in _NAMES[_NAMES.index("experts") :]},
    )
    return Chain(config=config, weights=weights, starts_early=False)


class _Layer(_SingleLevelFunction):
    """Node of autograd's graph that computes a layer, and its gradients."""

    @staticmethod
    def forward(_names: tuple[str, ...], call: Callable[..., Any], *given: Any) -> Any:
        """Return the result of the layer, and that of the first product. Autograd is off inside."""
        return call(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save the tensors that the requested gradients need."""
        names, _call, *given = inputs
        named = dict(zip(names, given, strict=True))
        needs = dict(zip(names, ctx.needs_input_grad[nodes.BEFORE :], strict=True))
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        passes = any(needs[name] for name in ("x", "topk_weights", "w13", "w13_bias", "w2"))
        reads = {
            "x": needs["w13"],
            "topk_weights": passes or needs["w2_bias"],
            "w13": needs["x"],
            "w2": passes,
            "offs": True,
            "permutation": True,
            "inverse": True,
            "w2_bias": needs["topk_weights"],
            "shared": needs["shared_weights"],
            "shared_weights": needs["shared"],
        }
        kept = {name: named[name] if is_read else None for name, is_read in reads.items()}
        ctx.kept, ctx.names, ctx.needs, ctx.passes = (*kept, "h"), names, needs, passes
        ctx.groups, ctx.session = named["w13"].shape[0], current.get()
        ctx.activation = {name: named[name] for name in ("activation", "interleaved", *NUMBERS)}
        ctx.numerics = named["numerics"]
        ctx.expected_m = _expected_rows(named)
        ctx.save_for_backward(*kept.values(), output[1] if passes else None)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, _dh: Tensor | None) -> Any:
        """
        Return the requested gradients, one for each argument of `forward`; None for the others.
        """
        kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        if dout is None:
            return *[None] * nodes.BEFORE, *[None] * len(ctx.names)
        with torch.no_grad(), ctx.session.active():  # another thread may be here
            found = _backward(ctx, dout.contiguous(), kept)
        return nodes.found(ctx, _OP, found, dout)


def _expected_rows(named: Mapping[str, Any]) -> int | None:
    """
    Return the mean rows of a group that `MoEConfig.expected_rows` gives; None if this rank has all
    experts.
    """
    tokens, top_k = named["inverse"].shape
    if named["experts"] == named["w13"].shape[0]:
        return None
    return max(1, -(-tokens * top_k // named["experts"]))  # type: ignore[no-any-return]


def _backward(ctx: Any, dout: Tensor, kept: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Return the requested gradients, by the names of the arguments."""
    needs, found = ctx.needs, _of_shared(ctx.needs, dout, kept)
    pairs = offs, permutation, _ = Sorting(*(kept[name] for name in Sorting._fields))
    if not (ctx.passes or needs["w2_bias"]):
        return found
    of_groups: _Groups = (ctx.groups, {"offs": offs}, ctx.expected_m)
    pair_weights = kept["topk_weights"].flatten().index_select(0, permutation.clamp(min=0))
    drows = _gathered(dout, pairs)
    if needs["w2_bias"]:
        found["w2_bias"] = _of_bias(drows, pair_weights, of_groups)
    if not ctx.passes:
        return found
    dq = _turned(ctx, drows, kept["w2"], offs)
    of_rows = {"offs": offs, "expected_m": ctx.expected_m, **ctx.activation}
    dh, q, sums = activation_backward(dq, kept["h"], pair_weights, **of_rows)
    if needs["topk_weights"]:
        found["topk_weights"] = _of_pairs(sums, dout, pairs, kept["w2_bias"])
    if needs["w2"]:
        found["w2"] = gradients.of_weights(drows, q, *of_groups)
    return found | _of_first(ctx, dh, kept, pairs, of_groups)


def _of_first(
    ctx: Any, dh: Tensor, kept: Mapping[str, Tensor], pairs: Sorting, of_groups: _Groups
) -> dict[str, Tensor | None]:
    """Return the requested gradients of the operands and the bias of the first product."""
    needs, found = ctx.needs, dict[str, Tensor | None]()
    if needs["w13_bias"]:
        found["w13_bias"] = gradients.of_bias(dh, dh.dtype, *of_groups)
    if needs["w13"]:
        found["w13"] = gradients.of_weights(dh, _gathered(kept["x"], pairs), *of_groups)
    if needs["x"]:
        ones = dh.new_ones(pairs.inverse.shape, dtype=torch.float32)
        found["x"] = combine(_turned(ctx, dh, kept["w13"], pairs.offs), pairs.inverse, ones)
    return found


def _gathered(tokens: Tensor, pairs: Sorting) -> Tensor:
    """Return the row of `tokens` for each pair, (T * k, H), in the order of `pairs`."""
    return permute_quantize(
        tokens,
        pairs.permutation,
        top_k=pairs.inverse.shape[1],
        offs=pairs.offs,
        inverse=pairs.inverse,
        format=NONE,
    )[0]


def _turned(ctx: Any, rows: Tensor, weights: Tensor, offs: Tensor) -> Tensor:
    """
    Return the gradient of the rows that a product multiplies by `weights`, given that of its
    results, `rows`; rows of no expert are not written.
    """
    b = weights.transpose(1, 2)
    return grouped_gemm(rows, b, offs=offs, expected_m=ctx.expected_m, numerics=ctx.numerics)


def _of_shared(
    needs: Mapping[str, bool], dout: Tensor, kept: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Return the gradients of `shared` and `shared_weights`."""
    found: dict[str, Tensor | None] = {}
    if needs["shared"]:
        found["shared"] = of_combine.of_shared(dout, kept["shared_weights"])
    if needs["shared_weights"]:
        found["shared_weights"] = of_combine.of_shared_weights(dout, kept["shared"])
    return found


def _of_pairs(sums: Tensor, dout: Tensor, pairs: Sorting, bias: Tensor | None) -> Tensor:
    """
    Return the gradient of the weights of pairs, (T, k) float32: the dot product of a token's dout
    with the row of each pair, computed from the sums of the activation and from the bias; 0 for
    pairs without a row.
    """
    offs, _, inverse = pairs
    rows = inverse.clamp(min=0)
    found = sums.sum(1).index_select(0, rows.flatten()).view(inverse.shape)
    if bias is not None:
        groups = torch.searchsorted(offs, rows, right=True).clamp(max=len(bias) - 1)
        found = found + (dout.float() @ bias.T).gather(1, groups)
    return found.masked_fill(inverse < 0, 0.0)


def _of_bias(drows: Tensor, pair_weights: Tensor, of_groups: _Groups) -> Tensor:
    """
    Return the gradient of the second bias, (G, H) float32: the weighted sum of each group's rows.

    Products take bfloat16, so each weight becomes three columns, which together have all of its
    bits.
    """
    columns = drows.new_zeros((len(pair_weights), gradients.BIAS_COLUMNS))
    rest = pair_weights
    for column in range(_PARTS):
        columns[:, column] = part = rest.to(columns.dtype)
        rest = rest - part.float()
    sums = gradients.of_weights(drows, columns, *of_groups, torch.float32)
    return sums[..., :_PARTS].sum(-1)


MOE = nodes.Gradients(
    require=lambda given: require_differentiable(given, _chain(given).weights), node=_Layer
)
