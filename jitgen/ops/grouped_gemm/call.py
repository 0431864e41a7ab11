# SPDX-License-Identifier: Apache-2.0
"""The public grouped GEMM, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.grouped_gemm.dispatch import SCALED, SCALED_ON_GPU, UNSCALED, GroupedGemm, Launch
from jitgen.ops.grouped_gemm.validate import Arguments
from jitgen.ops.launch import present, similar
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

if TYPE_CHECKING:
    from jitgen.formats.prepacked import PrepackedWeights


_UNSCALED, _UNSCALED_OUT, _B_SCALED, _B_SCALED_OUT, _SCALED, _SCALED_OUT = range(6)
"""
Part of the key that says which of the usual optional tensors a call has; a call with further
tensors has a tuple instead.
"""


def grouped_gemm(  # noqa: C901, PLR0912, PLR0913, PLR0915  # written out: a helper costs 0.06 us
    a: Tensor,
    b: Tensor | PrepackedWeights,
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,
    min_latency: bool | None = None,
    numerics: str | None = None,
    config: GroupedGemmConfig | Override | None = None,
) -> Tensor:
    """
    Multiply the rows of each group by the weights of the group: the linear layers of many experts
    in one call.

    ``out[m, n] = sum over k of a[m, k] * b[g, n, k]``, times the scales (and, with nv16 ones, times
    ``alpha[g]``), where g is the group of row m. Products are added in float32, and with block128
    scales promoted once per 128 of K. The kernel is compiled at the first call that needs it,
    unless it was prewarmed or JITGEN_ON_MISS says otherwise; it runs on the current stream of the
    tensors' device, and the host does not wait for it.

    Autograd gets gradients of a, b and bias if a and b are bfloat16 or float16 (on a CPU also
    float32) without scales, and `out` is not given. Second derivatives are not supported: see
    docs/gradients.md.

    As in torch, float32 operands give a float32 result by default, and float16 operands a float16
    result; results of other operands are bfloat16.

    Exactly one of `offs`, `m_indices` and `masked_m` says which rows belong to which group. Their
    values are read on the device and not checked, unless JITGEN_CHECK is on: see docs/torch.md.

    Args:
        a: (M, K), or (G, M, K) with `masked_m`, K contiguous: float8_e4m3fn, bfloat16 or float16;
            on a CPU also float32. e2m1 is (M, K / 2) in pairs, the first value in the low half of a
            byte: uint8 or float4_e2m1fn_x2. On sm_90a rows of K values, addresses and strides are
            multiples of 16 bytes, as for b and out.
        b: (G, N, K), type and device of `a`, K contiguous. With bfloat16, float16 and float32, N
            may be contiguous instead, so that the transpose of (G, K, N) needs no copy. With mx32
            scales, b may also be e2m1, (G, N, K / 2), while a is float8_e4m3fn; on sm_120a, sm_121a
            and cpu also while a is bfloat16, which has no scales then. On sm_90a rows of N values
            of the output's type are a multiple of 16 bytes. b may also be weights that
            `jitgen.quantize.prepack_mxfp4` (or another ``prepack`` function) returned, for sm_90a
            and cpu; these contain their scales, so leave out `b_scale`. With those of layout wide1,
            a is bfloat16 without scales. With other layouts, a is float8_e4m3fn with row or
            block128 scales; or it is bfloat16 that `jitgen.quantize.split_bf16` split: (M, 2, K)
            with scales (M, 2), both with a leading G in the masked layout.
        a_scale: The scales of a, on the same device. Their shape follows from the granularity,
            which is given by the type and the number of dimensions of `b_scale`:

            =============  ==============================  ====================================
            granularity    a_scale                         b_scale
            =============  ==============================  ====================================
            tensor         (1,)                            (G,)
            row            (M,) or (G, M)                  (G, N)
            block128       (M, KB) or (G, M, KB)           (G, ceil(N / 128), KB)
            mx32, nv16     (blocks, ceil(S / 4), 512),     (G, ceil(N / 128), ceil(S / 4), 512)
                           or with G in front
            =============  ==============================  ====================================

            The first three are float32, and KB = ceil(K / 128). Block scales keep a last dimension
            of 1, so that they differ from row scales for K up to 128. Kernels read block scales of
            `a` with M contiguous and the stride of KB a multiple of 4, which `jitgen.quantize`
            returns; any other order costs a copy at each call, on the device and about 15 us on the
            host.

            mx32 is float8_e8m0fnu with S = ceil(K / 32), for float8_e4m3fn (MXFP8) and e2m1
            (MXFP4); nv16 is float8_e4m3fn with S = ceil(K / 16), for e2m1 (NVFP4). Both lie in
            atoms, as `jitgen.quantize` makes them: see `jitgen.formats.atoms`. a's have at least
            ceil(M / 128) blocks, or (M + 127 G) // 128 with `offs`.

            On sm_90a bfloat16 and float16 operands have scales of tensors or rows, and there are no
            kernels for mx32 and nv16.
        b_scale: The scales of b, as `a_scale`, last dimension contiguous. Both scales may be left
            out for bfloat16, float16 and float32 operands; then they are 1.
        offs: (G,) int32, the ragged layout: for each group, the index after its last row;
            non-decreasing, as torch's grouped GEMMs take it. Rows from ``offs[-1]`` on belong to no
            group.
        m_indices: (M,) int32, the contiguous layout: the group of each row, -1 for padding. Each
            group starts at a multiple of 128 rows.
        masked_m: (G,) int32, the masked layout: for each group, how many of its M rows are valid.
        alpha: (G,) float32, with nv16 scales and only with them: a factor for the sums of each
            group, a's global scale times b's.
        bias: (G, N) float32, N contiguous, for operands of any type: it is added to each row of the
            group before rounding. It may have a gradient if `a` and `b` may.
        out: (M, N) or (G, M, N), N contiguous, not overlapping with `a`: where the result goes.
            Rows of no group are not written.
        out_dtype: Type of the result if `out` is None: bfloat16, float16 or float32. Default: that
            of float16 and float32 operands, bfloat16 for other operands.
        expected_m: Expected number of rows of a group, by which the kernel is chosen; results are
            right for any value. If it is not given, groups are assumed to be equally large, and
            masked groups to be full.
        min_latency: Whether calls with at most 8 rows per group use the kernel with the least
            latency, if `config` is not given; None: as JITGEN_MIN_LATENCY says. See
            docs/selection.md.
        numerics: ``fast`` or ``invariant``. With ``invariant``, the bits of a row depend neither on
            the batch, nor on the layout, nor on the chosen kernel. None: as JITGEN_NUMERICS says.
            See docs/numerics.md.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.

    Returns:
        `out`, or a new tensor. Rows of no group are not written: those from ``offs[-1]`` on, where
            `m_indices` is -1, from ``masked_m[g]`` on. In a new tensor they contain whatever was in
            memory, such as infinities and NaN: leave them out of sums, and mask indices of -1,
            which address the last row.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. While autograd is on, so is a tensor that requires a gradient which does not
            exist.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.

    Cost on the host: at most 2 us more than the bare tvm-ffi call, if `out` is given and the shapes
    were used before; 0.4 us less under torch.no_grad(). Safe to call from any thread.

    torch's tracers (torch.compile, torch.export, make_fx, fake tensors) see one operation,
    ``torch.ops.jitgen.grouped_gemm``; see `jitgen.ops.tracing`.
    """
    key: tuple[Any, ...] = ()
    if isinstance(b, Tensor) and not is_dynamo_compiling():
        try:
            groups: Tensor | None = None
            if m_indices is None and masked_m is None:
                layout, groups = "ragged", offs
            elif offs is None and masked_m is None:
                layout, groups = "contiguous", m_indices
            elif offs is None and m_indices is None:
                layout, groups = "masked", masked_m
            else:
                layout = "several"  # a mistake: never remembered, so the validation below tells it
            # What a guard knows is not in the key: types, devices, sizes and strides of the weights
            # and their scales. How a's size divides the entry refuses, and run() replaces it.
            options: tuple[Any, ...] | None = None
            kind: Any
            if not (
                (alpha is None and bias is None and out_dtype is None and expected_m is None)
                and (min_latency is None and numerics is None and config is None)
            ):
                options = (
                    *(alpha is None, bias is None, out_dtype, expected_m, min_latency, numerics),
                    id(config),
                )
                kind = (a_scale is None, b_scale is None, out is None)
            elif b_scale is None:
                kind = _UNSCALED if out is None else _UNSCALED_OUT
            elif a_scale is None:
                kind = _B_SCALED if out is None else _B_SCALED_OUT
            else:
                kind = _SCALED if out is None else _SCALED_OUT
            key = (
                layout,
                a.numel(),  # in its place: `launch.ROWS`
                kind,
                options,
                groups.__class__,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, a):
                if kind == _SCALED_OUT:
                    is_for = launch.fits(a, b, a_scale, b_scale, out)
                elif kind == _SCALED:
                    is_for = launch.fits(a, b, a_scale, b_scale)
                elif kind == _UNSCALED:
                    is_for = launch.fits(a, b)
                elif kind == _UNSCALED_OUT:
                    is_for = launch.fits(a, b, out)
                else:
                    is_for = launch.fits(*present(a, b, a_scale, b_scale, alpha, out, bias))
                if not is_for:
                    continue
                if out is None:
                    result = launch.new_out(a)
                else:
                    mark_written((out,))
                    result = out
                way = launch.way
                if way == SCALED:
                    launch.function(a, b, a_scale, b_scale, groups, result)
                elif way == SCALED_ON_GPU:
                    launch.function(a, b, a_scale, b_scale, groups, result, launch.tail[0])
                elif way == UNSCALED:
                    launch.function(a, b, *launch.unit_scales, groups, result, *launch.tail)
                else:
                    launch.run(a, b, a_scale, b_scale, alpha, bias, groups, result)
                return result
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        *(a, b, a_scale, b_scale, offs, m_indices, masked_m),
        *(alpha, out, out_dtype, expected_m, min_latency, config),
        bias=bias,
        numerics=numerics,
    )
    if isinstance(b, Tensor):
        return CALL.run(args, key)  # type: ignore[arg-type]  # its b is a tensor
    return _with_prepacked()(args)  # or with a mistake


_prepacked: list[Callable[[Any], Tensor]] = []
"""The calls with prepacked weights, once imported. Dynamo warns of a cached function."""


def _with_prepacked() -> Callable[[Any], Tensor]:
    """
    Return the function for calls with prepacked weights. It is imported when it is first needed,
    because most programs do not use it.
    """
    if not _prepacked:
        from jitgen.ops.grouped_gemm.prepacked_call import grouped_gemm

        _prepacked.append(grouped_gemm)
    return _prepacked[0]


CALL = GroupedGemm(grouped_gemm)
