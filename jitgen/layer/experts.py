# SPDX-License-Identifier: Apache-2.0
"""
The public `moe_experts`, for tokens in one matrix per expert, as the low-latency dispatch of a
library for expert parallelism returns them. Nothing is sorted or gathered, and the caller combines
the results.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.errors import InputError
from jitgen.formats.protocol import ceil_div
from jitgen.layer.call import require_workspace
from jitgen.layer.chain import Chain, Counts, Rows
from jitgen.layer.config import MoEConfig
from jitgen.layer.gates import require_gates
from jitgen.layer.weights import BLOCK128, NONE, ExpertWeights, Matrices
from jitgen.layer.workspace import Lease, Workspace
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.dispatcher import is_traced, require_apart
from jitgen.support.moved import with_new_names

_BLOCK = 128


def moe_experts(  # noqa: PLR0913  # each is one thing to say
    x: Tensor,
    masked_m: Tensor,
    w13: Matrices,
    w2: Matrices,
    *,
    x_scale: Tensor | None = None,
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
    expected_m: int | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    min_latency: bool | None = None,
    numerics: str | None = None,
    **old: Any,
) -> Tensor:
    """
    Run every expert on its own matrix of tokens. It is the step between the dispatch and the
    combine of expert parallelism at decode, with a library that uses this layout (DeepEP's
    low-latency mode, vLLM's batched experts).

    ``out[g, m] = expert(g, x[g, m])`` for the first ``masked_m[g]`` rows of each matrix, where an
    expert is ``w2 . act(w13 . x + w13_bias) + w2_bias``. It makes three launches on the current
    stream, and one more if it must quantise the tokens. The host neither waits nor reads
    `masked_m`, so a call may be captured in a CUDA graph when its kernels are loaded. Equal inputs
    give equal bits.

    Args:
        x: (G, M, H): bfloat16, contiguous, for any weights; or float8_e4m3fn with `x_scale`, H
            contiguous, for weights whose activations are float8_e4m3fn. On sm_90a address and
            strides are multiples of 16 bytes, as for `out`.
        masked_m: (G,) int32: number of rows of each matrix that are tokens, 0 to M. The values are
            read on the device and not checked, unless JITGEN_CHECK is on.
        w13: As for `jitgen.moe`; the same holds for the other weights, scales and biases.
        w2: Likewise.
        x_scale: float32, the scales of a float8 `x`: (G, M, ceil(H / 128)) for block128
            activations, (G, M) for row activations. Block scales with M contiguous, as in DeepEP,
            are read directly if M is a multiple of 4; others cost a copy on the device.
        w13_scale: As for `jitgen.moe`.
        w2_scale: Likewise.
        w13_bias: Likewise.
        w2_bias: Likewise.
        activation_format: Likewise.
        activation: Likewise.
        interleaved: Likewise.
        swiglu_limit: Likewise.
        swiglu_alpha: Likewise.
        swiglu_beta: Likewise.
        gate_softcap: Likewise.
        up_softcap: Likewise.
        group_numbers: Likewise.
        expected_m: Expected number of rows of an expert, by which kernels are chosen; results are
            right for any value. None: M rows. Give it if M is the worst case.
        out: (G, M, H) bfloat16, H contiguous: where results go. It may be x, but must not overlap
            with other tensors, or with a part of x.
        workspace: Memory between the launches, with room for G * M rows: see `jitgen.Workspace.of`.
            None: torch's allocator provides it, as it always does under torch.compile; then
            quantising bfloat16 tokens costs one more launch, which numbers their rows.
        min_latency: As for `jitgen.grouped_gemm`.
        numerics: Likewise.
        **old: As for `jitgen.moe`.

    Returns:
        `out`, or a new tensor: (G, M, H) bfloat16. Rows from ``masked_m[g]`` on are not written.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. While autograd is on, so is a tensor that requires a gradient, because there is
            none.
        KernelMiss, CompileError, UnsupportedConfig: As `jitgen.grouped_gemm`.
    """
    if old:
        return moe_experts(**with_new_names(moe_experts, locals()))
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
    config = MoEConfig(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=weights.groups,
        top_k=1,  # a row is one pair already
        activation=activation,
        interleaved=interleaved,
        swiglu_limit=swiglu_limit,
        swiglu_alpha=swiglu_alpha,
        swiglu_beta=swiglu_beta,
        gate_softcap=gate_softcap,
        up_softcap=up_softcap,
        per_group=group_numbers is not None,
        min_latency=min_latency,
        numerics=numerics,
    )
    require_gates(config, weights)
    chain = Chain(config=config, weights=weights)
    return run_experts(chain, x, masked_m, x_scale, expected_m, out, workspace)


def run_experts(  # shared by a call and a module
    chain: Chain,
    x: Tensor,
    masked_m: Tensor,
    x_scale: Tensor | None = None,
    expected_m: int | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    """
    Check the tensors of a call and run the launches, with the kernels that the selector chooses.

    Raises:
        InputError: A tensor is wrong.
    """
    with calling("moe_experts"):
        _check(chain.weights, x, masked_m, x_scale, expected_m, out)
        groups, rows, _ = x.shape
        if workspace is not None:
            require_workspace(workspace)
            workspace.require_masked(chain.weights, rows)
        if out is not None and not (is_compiling() or is_traced((out, x))):
            given = {"out": out, "x": x, "masked_m": masked_m}
            given |= {} if x_scale is None else {"x_scale": x_scale}
            require_apart(given | chain.weights.tensors, ("out",), in_place=("x",))
        if not rows:
            return x.new_empty(x.shape, dtype=torch.bfloat16) if out is None else out
        counts = Counts(masked_m, expected_m)
        memory = None if is_compiling() else workspace  # a view of each size is a graph
        is_quantised = _is_quantised_here(chain.weights, x)
        if memory is not None and is_quantised:
            memory.number_rows()
        with nullcontext(Lease()) if memory is None else memory.lease() as lease:
            into = lease.masked(groups, rows)
            rows_in: Rows = x, x_scale
            if is_quantised:
                order = lease.order(groups, rows, x.device)
                rows_in = chain.quantise(x, counts, order, into)
            h = chain.gate_up(rows_in, counts, into)
            last = replace(into, y=out)  # into new memory where the caller gives none
            return chain.down(chain.activate(h, counts, into), counts, last)


def _is_quantised_here(weights: ExpertWeights, x: Tensor) -> bool:
    return x.dtype is not weights.a_dtype


def _check(
    weights: ExpertWeights,
    x: Tensor,
    masked_m: Tensor,
    x_scale: Tensor | None,
    expected_m: int | None,
    out: Tensor | None,
) -> None:
    like = ("x", x.device)
    _check_x(weights, x, x_scale)
    groups, rows, hidden = x.shape
    common.require("masked_m", masked_m)
    common.check_groups("masked_m", masked_m, groups, like)
    if expected_m is not None and (type(expected_m) is not int or expected_m < 1):
        raise InputError("expected_m", f"must be an integer of at least 1 (got {expected_m!r})")
    if out is not None:
        common.require(
            "out",
            out,
            [torch.bfloat16],
            shape=((groups, rows, hidden), "as x has"),
            like=like,
            contiguous=-1,
        )
    if torch.is_grad_enabled():
        given = {"x": x, "x_scale": x_scale, "out": out, **weights.tensors}
        common.refuse_gradients(given, "moe_experts")


def _check_x(weights: ExpertWeights, x: Tensor, x_scale: Tensor | None) -> None:
    """Require tokens in the type that the weights need, or in bfloat16, which can be quantised."""
    common.require(
        "x", x, sorted({torch.bfloat16, weights.a_dtype}, key=str), rank=(3, "(G, M, H)")
    )
    shape = weights.groups, x.shape[1], weights.hidden
    common.require(
        "x",
        x,
        shape=(shape, "a matrix for each expert of w13"),
        like=("w13", weights.device),
        contiguous=-1,
    )
    if x.dtype is torch.bfloat16:
        if x_scale is not None:
            raise InputError("x_scale", "belongs to float8_e4m3fn: leave it out with bfloat16")
        if weights.activation_format != NONE and not x.is_contiguous():
            raise InputError(
                "x", f"must be contiguous where it is quantised (got strides {x.stride()})"
            )
        return
    if x_scale is None:
        raise InputError("x_scale", "is required for float8_e4m3fn tokens (got None)")
    blocks = (ceil_div(weights.hidden, _BLOCK),) * (weights.activation_format == BLOCK128)
    common.require("x_scale", x_scale, [torch.float32])
    why = f"as activations are {weights.activation_format}"
    common.require("x_scale", x_scale, shape=((*shape[:2], *blocks), why), like=("x", x.device))
