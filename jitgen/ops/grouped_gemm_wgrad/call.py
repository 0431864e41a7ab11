# SPDX-License-Identifier: Apache-2.0
"""The public `grouped_gemm_wgrad`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.grouped_gemm_wgrad.dispatch import GroupedGemmWgrad, Launch
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments
from jitgen.ops.launch import present, similar
from jitgen.runtime.override import Override
from jitgen.runtime.session import current


def grouped_gemm_wgrad(  # each is one thing to say
    dy: Tensor,
    a: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,
    config: GroupedGemmWgradConfig | Override | None = None,
) -> Tensor:
    """
    Compute the gradient of a grouped GEMM's weights: for each group, a product summed over its
    rows.

    ``out[g] = dy[rows of g].T @ a[rows of g]``. For ``y = jitgen.grouped_gemm(a, b, offs=offs)`` it
    is the gradient of b, if dy is the gradient of y; autograd calls it automatically. Products are
    added in float32 and rounded once, at the end. The kernel is compiled at the first call that
    needs it, unless it was prewarmed or JITGEN_ON_MISS says otherwise; it runs on the current
    stream of the tensors' device, and the host does not wait for it.

    Exactly one of `offs` and `masked_m` says which rows belong to which group. Their values are
    read on the device and not checked. Rows of no group may be read, but do not change the result;
    they may contain any values.

    Autograd gets gradients of dy and a, which are grouped GEMMs: see docs/gradients.md.

    Args:
        dy: (M, N), or (G, M, N) with `masked_m`: bfloat16 or float16, on a CPU also float32. N
            contiguous. On sm_90a N and K are multiples of 8, and addresses and strides of 16 bytes,
            as for a and out.
        a: (M, K) or (G, M, K), type and device of `dy`, K contiguous.
        offs: (G,) int32, the ragged layout: for each group, the index after its last row;
            non-decreasing. Rows from ``offs[-1]`` on belong to no group.
        masked_m: (G,) int32, the masked layout: for each group, how many of its M rows are valid.
        out: (G, N, K), K contiguous: where the result goes. Groups without rows get zeros.
        out_dtype: Type of the result if `out` is None: float32, or the type of the operands.
            Default: the type of the operands, as in torch.
        expected_m: Expected number of rows of a group, by which the kernel is chosen; results are
            right for any value. If it is not given, groups are assumed to be equally large, and
            masked groups to be full.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.

    Returns:
        `out`, or a new tensor; all of it is written.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. With `out` a tensor that requires a gradient is wrong while autograd is on.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation,
    ``torch.ops.jitgen.grouped_gemm_wgrad``; see `jitgen.ops.tracing`.
    """
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        try:
            groups = masked_m if offs is None else offs
            # What a guard knows is not in the key, nor strides, nor that the tensors agree about
            # their sizes: the entry refuses others, and run() replaces it.
            key = (
                "grouped_gemm_wgrad",
                a.shape[-2],  # in its place: `launch.ROWS`
                a.shape[-1],
                dy.shape[-1],
                groups.shape,  # type: ignore[union-attr]
                # Both are a mistake: never remembered, so the validation below tells it.
                masked_m is None or offs is None or "several",
                masked_m is None,
                out_dtype,
                expected_m,
                None if config is None else id(config),
                out is None,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, a):
                if launch.fits(*present(dy, a, groups, out)):
                    if out is not None:
                        mark_written((out,))
                    return launch.call(dy, a, groups, out)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        dy=dy,
        a=a,
        offs=offs,
        masked_m=masked_m,
        out=out,
        out_dtype=out_dtype,
        expected_m=expected_m,
        config=config,
    )
    return CALL.run(args, key)


CALL = GroupedGemmWgrad(grouped_gemm_wgrad)
