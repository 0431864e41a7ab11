# SPDX-License-Identifier: Apache-2.0
"""The public `moe`: its checks, and its call of the chain."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.errors import InputError
from jitgen.layer import gradients
from jitgen.layer.chain import Chain
from jitgen.layer.config import CHUNK_TOKENS, MoEConfig
from jitgen.layer.gates import require_gates
from jitgen.layer.lora import ExpertLora, adapters_of
from jitgen.layer.weights import ExpertWeights, Matrices
from jitgen.layer.workspace import Lease, Workspace
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.dispatcher import is_traced, require_apart
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import require_few
from jitgen.support.moved import with_new_names

if TYPE_CHECKING:
    from jitgen.parallel import Wire


def moe(  # noqa: PLR0913  # each is one thing to say
    x: Tensor,
    w13: Matrices,
    w2: Matrices,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    w13_scale: Tensor | None = None,
    w2_scale: Tensor | None = None,
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
    activation_format: str | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    gate_softcap: float | None = None,
    up_softcap: float | None = None,
    group_numbers: Tensor | None = None,
    experts: int | None = None,
    first_expert: int = 0,
    sorting: Routing | Sorting | None = None,
    shared: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    min_latency: bool | None = None,
    numerics: str | None = None,
    zero_experts: int = 0,
    shared_weights: Tensor | None = None,
    group: Wire | None = None,
    rank_tokens: int | None = None,
    lora: ExpertLora | None = None,
    adapter_ids: Tensor | None = None,
    **old: Any,
) -> Tensor:
    """
    Run every token through its experts, and add up their weighted results.

    ``out[t] = shared[t] + sum over j of topk_weights[t, j] * expert(topk_ids[t, j],
    x[t])``, where an expert is ``w2 . act(w13 . x + w13_bias) + w2_bias``. A pass makes at most six
    launches on the current stream of the tensors' device. The host waits for nothing, and no size
    depends on a value on the device, so a call may be captured in a CUDA graph when its kernels are
    loaded. Equal inputs give equal bits.

    Tokens are quantised to a format that the weights need: see the table in `jitgen.layer.weights`.
    bfloat16 weights have gradients, and so have all tensors that are multiplied by them. If
    autograd needs a gradient, the call keeps x and the result of the first product, and processes
    all tokens at once. See docs/gradients.md.

    Args:
        x: (T, H) bfloat16, H contiguous.
        w13: (G, 2 I, H): rows of gates, then rows of ups; (G, I, H) where `activation` has no gate,
            and so for scales and bias. bfloat16, or float8_e4m3fn with `w13_scale`, or weights that
            `jitgen.quantize.prepack_mxfp4`, `prepack_int4`, `prepack_nvfp4` or `prepack_mxfp8`
            returned.
        w2: (G, H, I), of the same format.
        topk_weights: (T, k) float32: weight of each expert.
        topk_ids: (T, k) int32 or int64: the experts of each token, numbered over the whole layer.
            Experts of other ranks are skipped, and so is every number out of range.
        w13_scale: (G, ceil(2 I / 128), ceil(H / 128)) float32 for blocks, or (G, 2 I) for rows.
        w2_scale: (G, ceil(H / 128), ceil(I / 128)) float32, or (G, H).
        w13_bias: (G, 2 I) float32, added to the first product.
        w2_bias: (G, H) float32, likewise.
        activation_format: ``none``, ``block128`` or ``row``: the format to which tokens are
            quantised, if the weights allow several.
        activation: An activation of `jitgen.activation_quantize`; its numbers are the arguments
            below.
        interleaved: Whether rows of `w13` alternate between gate and up, as in gpt-oss.
        swiglu_limit: As for `jitgen.activation_quantize`.
        swiglu_alpha: Likewise.
        swiglu_beta: Likewise.
        gate_softcap: Likewise.
        up_softcap: Likewise.
        group_numbers: Likewise, for the experts of this rank: (G, n) float32.
        experts: Experts of the whole layer; None: `first_expert` and those of `w13`.
        first_expert: The number of the first expert of `w13`. If ranks share a layer, each has a
            part of the experts, and their results must be added up.
        sorting: The result of `jitgen.route` or `jitgen.sort_pairs` for these `topk_ids` and the
            experts of this rank; it saves the launch that sorts. Its values are not checked.
        shared: (T, H) bfloat16, added at the end: the result of experts that all tokens share.
        out: (T, H) bfloat16, H contiguous: where the result goes. It may be x or `shared`, but must
            not overlap with other tensors, or with a part of these.
        workspace: Memory between the launches; None: torch's allocator provides it, as it always
            does under torch.compile.
        chunk_tokens: Most tokens of one pass. A call with more tokens makes several passes, which
            limits its memory.
        min_latency: As for `jitgen.grouped_gemm`.
        numerics: As for `jitgen.grouped_gemm`; with ``invariant``, the result of a token depends
            only on that token.
        zero_experts: Number of further experts without weights, numbered from `experts` on, which
            return the token itself: ``topk_weights[t, j] * x[t]`` (the zero-computation experts of
            LongCat-Flash). The rank with expert 0 adds them, and `shared` must not be given.
        shared_weights: (T,) float32, factors of the rows of `shared`, such as the gate
            ``torch.sigmoid(gate(x)).float().flatten()`` of Qwen3-Next. None: 1.
        group: The result of `jitgen.parallel.connect`: the ranks that share the layer. Each has the
            share of `experts` that `jitgen.parallel.share` gives, or experts from `first_expert`
            on. All ranks make the same number of calls, even if they have no tokens:
            docs/expert-parallel.md.
        rank_tokens: With a group: the largest number of tokens of a rank in this call, the same
            number on all ranks; None: the number that the group was connected for.
        lora: Low-rank adapters of the experts. They have no gradients, and cost two more launches,
            or three with quantised weights.
        adapter_ids: (T,) int32 or int64: the adapter of each token; -1, or any number out of range,
            for no adapter. Required with `lora`.
        **old: Arguments by their old names: see docs/renamed.md.

    Returns:
        `out`, or a new tensor: (T, H) bfloat16.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. So is a tensor that requires a gradient which does not exist: with quantised
            weights, or with `out`.
        KernelMiss, CompileError, UnsupportedConfig: As `jitgen.grouped_gemm`.
    """
    if old:
        return moe(**with_new_names(moe, locals()))
    weights = ExpertWeights(
        w13=w13,
        w2=w2,
        w13_scale=w13_scale,
        w2_scale=w2_scale,
        w13_bias=w13_bias,
        w2_bias=w2_bias,
        activation_format=activation_format,
        group_numbers=group_numbers,
    )
    common.require("topk_ids", topk_ids, rank=(2, "(T, k)"))
    require_few("topk_ids", topk_ids.shape[1])
    if group is not None:
        from jitgen.layer import ranks

        if sorting is not None:
            raise InputError("sorting", "must be None with a group: tokens of all are sorted")
        if lora is not None:
            raise InputError("lora", "must be None with a group: adapters stay on a rank")
        group, first_expert = ranks.place_of(group, experts, first_expert, weights.groups)
    elif rank_tokens is not None:
        raise InputError("rank_tokens", "must be None without a group")
    if type(experts) is type(first_expert) is int and first_expert + weights.groups > experts:
        raise InputError(
            "experts",
            f"must be at least {first_expert + weights.groups}, of the layer: the weights have "
            f"{weights.groups} from first_expert on (got {experts!r})",
        )
    config = MoEConfig(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=first_expert + weights.groups if experts is None else experts,
        top_k=topk_ids.shape[1],
        activation=activation,
        interleaved=interleaved,
        swiglu_limit=swiglu_limit,
        swiglu_alpha=swiglu_alpha,
        swiglu_beta=swiglu_beta,
        gate_softcap=gate_softcap,
        up_softcap=up_softcap,
        per_group=group_numbers is not None,
        first_expert=first_expert,
        local_experts=weights.groups,
        chunk_tokens=chunk_tokens,
        min_latency=min_latency,
        numerics=numerics,
        zero_experts=zero_experts,
    )
    require_gates(config, weights)
    if lora is not None and adapter_ids is None:
        raise InputError("adapter_ids", "is required with lora: the adapter of each token, or -1")
    if group is not None:
        config = ranks.promised(config, group)
    chain = Chain(config=config, weights=weights)
    if group is not None:
        of_rank = (x, topk_weights, topk_ids, shared, out, workspace, shared_weights)
        return ranks.run_on_ranks(chain, group, *of_rank, rank_tokens)
    given = (x, topk_weights, topk_ids, shared, out, workspace, sorting)
    return run(chain, *given, shared_weights=shared_weights, lora=lora, adapter_ids=adapter_ids)


def run(  # noqa: PLR0913, PLR0917  # each is one thing to say
    chain: Chain,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    shared: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    sorting: Routing | Sorting | None = None,
    shared_weights: Tensor | None = None,
    lora: ExpertLora | None = None,
    adapter_ids: Tensor | None = None,
) -> Tensor:
    """
    Check the tensors of a call and run the chain.

    Raises:
        InputError: A tensor is wrong.
    """
    with calling("moe"):
        check(chain, x, topk_weights, topk_ids, shared, out)
        check_weights(chain, x, shared, shared_weights)
        adapters = adapters_of(lora, adapter_ids, x, chain.config, chain.weights)
        pairs = None if sorting is None else _sorted(chain, sorting, topk_ids)
        ids = common.short_ids(topk_ids).contiguous()
        trains = torch.is_grad_enabled() and _trains(
            chain, x, topk_weights, shared, out, shared_weights
        )
        if trains and adapters is not None:
            raise InputError(
                "adapter_ids",
                "must be None where autograd needs gradients: there are none with adapters",
            )
    if trains:  # outside: torch's checkpoints end a forward by an exception of their own
        return gradients.run(chain, x, topk_weights, ids, shared, pairs, shared_weights)
    with calling("moe"):
        if out is not None and not (is_compiling() or is_traced((out, x))):
            given = {"out": out, "x": x, "topk_weights": topk_weights, "topk_ids": topk_ids}
            given |= {} if shared is None else {"shared": shared}
            given |= {} if shared_weights is None else {"shared_weights": shared_weights}
            given |= {} if pairs is None else pairs._asdict()
            given |= (
                {} if adapters is None else {"adapter_ids": adapters.ids, **adapters.lora.tensors}
            )
            # Launches read x, chunk by chunk, before they write the same rows of out.
            require_apart(given | chain.weights.tensors, ("out",), in_place=("x", "shared"))
        if workspace is not None:
            require_workspace(workspace)
            workspace.require(chain.config, chain.weights)
            workspace = None if is_compiling() else workspace  # a view of each size is a graph
        counts = topk_weights.contiguous()
        with nullcontext(Lease()) if workspace is None else workspace.lease() as lease:
            more = lease, pairs, shared_weights, adapters
            return chain.run_in_chunks(x, counts, ids, shared, out, *more)


def _trains(
    chain: Chain,
    x: Tensor,
    topk_weights: Tensor,
    shared: Tensor | None,
    out: Tensor | None,
    shared_weights: Tensor | None,
) -> bool:
    """
    Say whether autograd needs a gradient from a call.

    Raises:
        InputError: Autograd needs a gradient that does not exist.
    """
    given = {"x": x, "topk_weights": topk_weights, "shared": shared, "out": out}
    given |= {"shared_weights": shared_weights, **chain.weights.tensors}
    gradients.require_differentiable(given, chain.weights)
    return common.needs_gradient(given.values())


def require_workspace(given: object) -> None:
    """Require a `jitgen.Workspace`, or None."""
    if not isinstance(given, Workspace):
        raise InputError(
            "workspace",
            f"must be a jitgen.Workspace, or None (got {type(given).__name__})",
        )


def _sorted(chain: Chain, given: Routing | Sorting, topk_ids: Tensor) -> Sorting:
    """Return the sorting `given`, after checking that it fits the call."""
    if not isinstance(given, Routing | Sorting):
        raise InputError(
            "sorting",
            "must be what jitgen.route or jitgen.sort_pairs gave, or None "
            f"(got {type(given).__name__})",
        )
    found = Sorting(*given[-3:])
    for name, shape in (
        ("offs", (chain.weights.groups,)),
        ("permutation", (topk_ids.numel(),)),
        ("inverse", tuple(topk_ids.shape)),
    ):
        tensor = getattr(found, name)
        common.require(
            f"sorting.{name}",
            tensor,
            [torch.int32],
            shape=(shape, "for these topk_ids and experts"),
            like=("topk_ids", topk_ids.device),
        )
    return found


def check_weights(
    chain: Chain, x: Tensor, shared: Tensor | None, shared_weights: Tensor | None
) -> None:
    """
    Check that `shared_weights` are given only with `shared`, and that `shared` is not given if
    experts without weights add the tokens.
    """
    if chain.config.zero_experts and shared is not None:
        raise InputError("shared", "must be None beside zero_experts, which take its place")
    if shared_weights is None:
        return
    if shared is None:
        raise InputError("shared_weights", "must be None without shared, which they are for")
    common.require(
        "shared_weights",
        shared_weights,
        [torch.float32],
        shape=((x.shape[0],), "one for each token"),
        like=("x", x.device),
        contiguous=0,
    )


def check(
    chain: Chain,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    shared: Tensor | None,
    out: Tensor | None,
) -> None:
    """Require tensors that fit the layer and each other."""
    like = ("x", x.device)
    common.require("x", x, [torch.bfloat16], rank=(2, "(T, H)"))
    tokens, hidden, top_k = x.shape[0], chain.config.hidden, chain.config.top_k
    common.require(
        "x",
        x,
        shape=((tokens, hidden), f"as w13 is {chain.weights.groups} x 2 I x H"),
        like=("w13", chain.weights.device),
        contiguous=-1,
    )
    for name, tensor, dtypes in (
        ("topk_weights", topk_weights, [torch.float32]),
        ("topk_ids", topk_ids, [torch.int32, torch.int64]),
    ):
        common.require(
            name, tensor, dtypes, shape=((tokens, top_k), "for each token its experts"), like=like
        )
    for name, given in (("shared", shared), ("out", out)):
        if given is None:
            continue
        common.require(
            name,
            given,
            [torch.bfloat16],
            shape=((tokens, hidden), "as x has"),
            like=like,
            contiguous=-1,
        )
