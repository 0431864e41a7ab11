# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4`: a kernel on GPUs that have one, torch elsewhere.

Both give the same bits for rows of a group. torch's tracers see one operation,
``torch.ops.jitgen.quantize``; see `jitgen.ops.tracing`. Where `x` needs a gradient they see torch's
operations, which have one.
"""

from __future__ import annotations

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.format import Format
from jitgen.config.quantize import QuantizeConfig
from jitgen.formats import mx32, nv16
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.ops.quantize.dispatch import Launch, Quantize
from jitgen.ops.quantize.validate import Arguments, Result
from jitgen.runtime.override import Override
from jitgen.runtime.session import current


def mxfp8(
    x: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    rounding: mx32.Rounding = "up",
    out: Result | None = None,
    config: QuantizeConfig | Override | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights to MXFP8: e4m3 with a power of two for every 32 along K.

    On GPUs of jitgen's targets bfloat16 with K a multiple of 16 takes one kernel that reads x once;
    everything else takes torch's operations. Nothing waits for the device.

    Args:
        x: (M, K) activations, contiguous or, with `offs`, ragged; (G, M, K) masked ones; or (G, N,
            K) weights. Any float type; K is any size.
        offs: (G,) int32, for ragged rows: as `grouped_gemm` takes it.
        masked_m: (G,) int32, for (G, M, K): how many rows of each matrix count; None: all.
        rounding: ``up``: the smallest power of two with which nothing is clipped, as serving
            engines round activations. ``floor``: ``2**(floor(log2(amax)) - 8)``, the
            specification's (6.3), which clips values between 448 and 512 times the scale, where
            ``up`` doubles the scale and so all errors. torchao calls them RCEIL and FLOOR.
        out: Where results go, a tuple in the order in which they are returned: q and scale, of the
            shapes and types below, contiguous.
        config: The kernel to use, instead of the selector's, or an edited one, see
            `jitgen.override`; for tensors that one serves.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: float8_e8m0fnu in atoms (see `jitgen.formats.atoms`): (blocks, ceil(S / 4), 512),
            with a leading G if `x` has one; S = ceil(K / 32), blocks = ceil(M / 128), or (M + 127
            G) // 128 with `offs`. `x` is near ``q[m, k] * 2**(scale - 127)``. Rows of no group,
            from ``offs[-1]`` or ``masked_m[g]`` on, have any value in q and scale, and so have rows
            of atoms that `x` has not.

    Raises:
        InputError: An argument is not of this kind, or no kernel serves where `config` is given.
        CompileError: The kernel cannot be compiled.

    A kernel that is missing where compiling is off (JITGEN_ON_MISS), or while a CUDA graph is
    captured, is named in a warning, once, and torch's operations serve.
    """
    return quantized(x, Format.MXFP8, offs, masked_m, None, rounding, out, config)


def mxfp4(
    x: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    rounding: mx32.Rounding = "up",
    out: Result | None = None,
    config: QuantizeConfig | Override | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights to MXFP4: e2m1 values with a power of two as scale for every 32
    along K.

    Args:
        x: As for `mxfp8`; K is even.
        offs: As for `mxfp8`.
        masked_m: As for `mxfp8`.
        rounding: As for `mxfp8`; with ``floor``, which the specification describes, values between
            6 and 8 times the scale are clipped.
        out: As for `mxfp8`.
        config: As for `mxfp8`.

    Returns:
        q: (..., K / 2) uint8, two values a byte; `grouped_gemm` also takes
            ``q.view(torch.float4_e2m1fn_x2)``.
        scale: As of `mxfp8`.

    Raises:
        InputError: As for `mxfp8`.
        CompileError: As for `mxfp8`.
    """
    return quantized(x, Format.MXFP4, offs, masked_m, None, rounding, out, config)


def nvfp4(
    x: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    global_scale: Tensor | None = None,
    out: Result | None = None,
    config: QuantizeConfig | Override | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Quantise activations or weights to NVFP4: e2m1 values with an e4m3 scale for every 16 along K.

    Args:
        x: (M, K) activations, contiguous or, with `offs`, ragged; (G, M, K) masked ones; or (G, N,
            K) weights. Any float type; K is even and need not be a multiple of 16.
        offs: (G,) int32, for ragged rows: as `grouped_gemm` takes it.
        masked_m: As for `mxfp8`.
        global_scale: float32, a factor of dequantised values: (1,), or (G,) if `x` has G. None:
            ``amax(x) / (6 * 448)`` of all of `x`, or of each matrix, including rows of no group. A
            calibrated factor saves a pass over `x`; blocks for which it is too small are clipped.
            (ModelOpt calls it ``input_scale`` and ``weight_scale_2``; TRT-LLM's and
            compressed-tensors' global scales are its reciprocal.)
        out: As for `mxfp8`.
        config: As for `mxfp8`.

    Returns:
        q: (..., K / 2) uint8, two values a byte; `grouped_gemm` also takes
            ``q.view(torch.float4_e2m1fn_x2)``.
        scale: float8_e4m3fn in atoms (see `jitgen.formats.atoms`): (blocks, ceil(S / 4), 512), with
            a leading G if `x` has one; S = ceil(K / 16), blocks = ceil(M / 128), or (M + 127 G) //
            128 with `offs`: ``amax / 6 / global_scale`` of its 16 values, rounded. Rows of no group
            as in `mxfp8`.
        global_scale: The given or computed factor, (1,) or (G,) float32. The product of those of a
            and b is the argument alpha of `grouped_gemm`.

    Raises:
        InputError: As for `mxfp8`.
        CompileError: As for `mxfp8`.
    """
    overall = nv16.global_scale_of(x, offs, global_scale)
    return *quantized(x, Format.NVFP4, offs, masked_m, overall, "up", out, config), overall


def quantized(
    x: Tensor,
    format: str,  # noqa: A002  # as graphs of torch call it
    offs: Tensor | None,
    masked_m: Tensor | None,
    global_scale: Tensor | None,
    rounding: str,
    out: Result | None,
    config: QuantizeConfig | Override | None,
) -> Result:
    """
    Return q and its scales for any format; `global_scale` is for NVFP4 only.

    A warm call is one lookup and one tvm-ffi call.
    """
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        groups = masked_m if offs is None else offs
        try:
            # Dtypes and strides are not in the key: the entry refuses others.
            shape = x.shape
            key = (
                offs is None,
                shape,  # in its place: `launch.ROWS`
                shape[-1],
                len(shape),
                masked_m is None,
                None if groups is None else groups.numel(),
                format,
                rounding,
                None if config is None else id(config),
                "quantize",  # other operations remember in the same place
                None if out is None else _kind(*out),
                global_scale is None,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, x):
                if launch.fits(*present(x, groups, global_scale, *(out or ()))):
                    if out is not None:
                        mark_written(out)
                    return launch.call(x, groups, global_scale, out)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(x, str(format), offs, masked_m, global_scale, rounding, out, config)
    return CALL.run(args, key)


def _kind(q: Tensor, scale: Tensor) -> tuple[object, ...]:
    """Return the properties of given result tensors that are part of the key of a warm call."""
    return q.shape, q.is_contiguous(), scale.shape, scale.is_contiguous()


CALL = Quantize(quantized)
