# SPDX-License-Identifier: Apache-2.0
"""The public `permute_quantize`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.permute_quantize import PermuteQuantizeConfig
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.ops.permute_quantize.dispatch import Launch, PermuteQuantize
from jitgen.ops.permute_quantize.validate import Arguments
from jitgen.ops.scaled import with_scale
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.support.moved import with_new_names


def permute_quantize(  # noqa: C901, PLR0913  # each is one thing to say
    x: Tensor,
    permutation: Tensor,
    *,
    top_k: int,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    inverse: Tensor | None = None,
    format: str = "block128",  # noqa: A002  # as quantising calls name it
    q_dtype: torch.dtype | None = None,
    global_scale: Tensor | None = None,
    power_of_two: bool = False,
    rounding: str = "up",
    out: tuple[Tensor, Tensor | None] | None = None,
    config: PermuteQuantizeConfig | Override | None = None,
    expected_m: int | None = None,
    **old: object,
) -> tuple[Tensor, Tensor | None]:
    """
    Copy the rows of tokens into the order of experts, and quantise them.

    Row r of the result is row ``permutation[r] // top_k`` of x, quantised to the same bits as by
    `jitgen.quantize`, in the order in memory that `jitgen.grouped_gemm` reads. The kernel is
    compiled at the first call that needs it, unless it was prewarmed or JITGEN_ON_MISS says
    otherwise; it runs on the current stream of the tensors' device, and the host does not wait for
    it.

    Exactly one of `offs`, `m_indices` and `masked_m` says which rows belong to a group, as for
    `jitgen.grouped_gemm`. Their values, and those of permutation and inverse, are read on the
    device and not checked; an index out of range is ignored, or counts as another token.

    Args:
        x: (T, K) bfloat16, rows of tokens, last dimension contiguous. On a GPU K is a multiple of
            16, and address and strides are multiples of 16 bytes.
        permutation: (T * top_k,) int32 for ragged rows, as `jitgen.route` gives it: the pair in
            each row, which is the token times `top_k` plus one of its places; -1 in rows of no
            group. (M,) for contiguous rows, (G, M) for masked ones.
        top_k: Places of a token, 1 to 32.
        offs: (G,) int32, the ragged layout: for each group, the index after its last row.
        m_indices: (M,) int32, the contiguous layout: the group of each row, -1 for padding.
        masked_m: (G,) int32, the masked layout: for each group, how many of its M rows are valid.
        inverse: (T, top_k) int32, as `jitgen.route` gives it: the row of each pair, -1 where it has
            none. It does not change the results. With it, kernels for ragged rows (except those
            with scales in atoms) read and quantise each token once for all of its copies.
        format: What values become, with the scales that they share:

            =============  =========================  ===================  =============
            format         scale                      q                    found by
            =============  =========================  ===================  =============
            block128       (M, KB) or (G, M, KB)      float8_e4m3fn        the kernel
            row            (M,) or (G, M)             float8_e4m3fn        the kernel
            tensor         (1,)                       float8_e4m3fn        the caller
            none           None                       bfloat16
            mxfp8          atoms, float8_e8m0fnu      float8_e4m3fn        the kernel
            mxfp4          atoms, float8_e8m0fnu      uint8, e2m1 pairs    the kernel
            nvfp4          atoms, float8_e4m3fn       uint8, e2m1 pairs    the kernel
            =============  =========================  ===================  =============

            with KB = ceil(K / 128), float32, M contiguous. Atoms are those of
            `jitgen.quantize.mxfp8` and `nvfp4`, for ragged and masked rows, on GPUs.
        q_dtype: Element type of q; None: as `format` says. With ``mx32``, an old name of ``mxfp8``,
            torch.float4_e2m1fn_x2 makes it ``mxfp4``.
        global_scale: float32 on the same device, a factor of dequantised values. For ``tensor``,
            (1,): values are divided by it. For ``nvfp4``, (1,), or (G,) with masked rows: the scale
            of the scales, as of `jitgen.quantize.nvfp4`.
        power_of_two: Round float32 scales that the kernel finds up to powers of two.
        rounding: ``up`` or ``floor``, for ``mxfp8`` and ``mxfp4``: as for `jitgen.quantize.mxfp8`.
        out: Where results go, a tuple in the order in which they are returned: q and scale, as
            described above. The last dimension of q is contiguous, and on a GPU its address and
            strides are multiples of 16 bytes; scale has the layout of a new one. None instead of
            scale means a new tensor, or that the format has no scales. Rows of no group are not
            written.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.
        expected_m: Expected number of rows of a group of the masked layout, by which the kernel is
            chosen; results are right for any value. If it is not given, every token is expected to
            use all of its places. It has no effect in other layouts, whose number of rows is known.
        **old: Arguments by their old names: see docs/renamed.md.

    Returns:
        q: The shape of `permutation` by K (by K / 2 for e2m1). Rows of no group are not written:
            those from ``offs[-1]`` on, where `m_indices` is -1, from ``masked_m[g]`` on. In a new
            tensor they contain whatever was in memory.
        scale: The scales, with the same rows unwritten; for ``tensor`` the given one; None for
            ``none``.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. While autograd is on, so is a tensor that requires a gradient, except x with
            format ``none``, an inverse and no `out`.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation,
    ``torch.ops.jitgen.permute_quantize``; see `jitgen.ops.tracing`.
    """
    if old:
        return permute_quantize(**with_new_names(permute_quantize, locals()))
    if out is not None and not isinstance(out, tuple):
        out = with_scale(out, "permute_quantize")
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        try:
            groups: Tensor | None = None
            q, scale = (None, None) if out is None else out
            if m_indices is None and masked_m is None:
                layout, groups = "ragged", offs
                # In the family's key, too, where the number of tokens is not.
                rows: object = permutation.shape[0] - x.shape[0] * top_k
            elif offs is None and masked_m is None:
                layout, groups = "contiguous", m_indices
                rows = permutation.numel() == 0  # nothing is launched then
            elif offs is None and m_indices is None:
                layout, groups = "masked", masked_m
                rows = permutation.numel() == 0  # nothing is launched then
            else:
                # A mistake, which the validation below reports; it is never remembered.
                layout, rows = "several", 0
            # What a guard knows is not in the key, nor strides, nor that tensors agree about their
            # sizes: the entry refuses others, and run() replaces it.
            shape = x.shape
            key = (
                layout,
                shape,  # in its place: `launch.ROWS`
                shape[-1],
                rows,
                top_k,
                None if m_indices is not None else groups.numel(),  # type: ignore[union-attr]
                None if q is None else q.shape[-1],
                None if scale is None else scale.shape,
                format,
                q_dtype,
                power_of_two,
                rounding,
                expected_m,
                None if config is None else id(config),
                "permute_quantize",  # other operations remember in the same place
                None if inverse is None else inverse.shape[-1],
                global_scale is None,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, x):
                tensors = present(x, permutation, groups, inverse, global_scale, q, scale)
                if launch.fits(*tensors):
                    if q is not None:
                        mark_written((q,) if scale is None else (q, scale))
                    return launch.call(
                        x, permutation, top_k, groups, inverse, global_scale, q, scale
                    )
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        x=x,
        permutation=permutation,
        top_k=top_k,
        offs=offs,
        m_indices=m_indices,
        masked_m=masked_m,
        inverse=inverse,
        format=format,
        q_dtype=q_dtype,
        global_scale=global_scale,
        power_of_two=power_of_two,
        rounding=rounding,
        out=out,
        config=config,
        expected_m=expected_m,
    )
    return CALL.run(args, key)


CALL = PermuteQuantize(permute_quantize)
