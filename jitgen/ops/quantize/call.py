# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4`: a kernel on GPUs that have one, torch elsewhere.

Both give the same bits for rows that somebody owns. What torch's tracers see is torch's operations.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.compiler import is_dynamo_compiling

from jitgen.errors import InputError, KernelMiss
from jitgen.events import warn_once
from jitgen.formats import e2m1, mx32, nv16
from jitgen.ops import calling as common
from jitgen.ops.launch import similar
from jitgen.ops.quantize.config import Format, QuantizeConfig, Rounding
from jitgen.ops.quantize.dispatch import Call, Result, run, server
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current


def mxfp8(
    x: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    rounding: mx32.Rounding = "up",
    config: QuantizeConfig | Override | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights to MXFP8: e4m3 with a power of two for every 32 along K.

    On sm_90a and sm_100a bfloat16 with K a multiple of 16 takes one kernel that reads x once;
    everything else takes torch's operations. Nothing waits for the device.

    Args:
        x: (M, K) activations, contiguous or, with `offs`, ragged; (G, M, K) masked ones; or
            (G, N, K) weights. Any float type; K need not be a multiple of 32.
        offs: (G,) int32, for ragged rows: as `grouped_gemm` takes it.
        masked_m: (G,) int32, for (G, M, K): how many rows of each matrix count; None: all.
        rounding: ``up``: the smallest power of two with which nothing is clipped, as serving
            engines round activations. ``floor``: ``2**(floor(log2(amax)) - 8)``, the
            specification's (6.3), which clips values between 448 and 512 times the scale, where
            ``up`` doubles the scale and so all errors. torchao calls them RCEIL and FLOOR.
        config: The kernel to use, instead of the selector's, or an edited one, see
            `jitgen.override`; for tensors that one serves.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: float8_e8m0fnu in atoms (see `jitgen.formats.atoms`): (blocks, ceil(S / 4), 512),
            with G in front where `x` has it; S = ceil(K / 32), blocks = ceil(M / 128), or
            (M + 127 G) // 128 with `offs`. `x` is near ``q[m, k] * 2**(scale - 127)``. Rows of no
            group have any value, in q and scale.

    Raises:
        InputError: An argument is not of this kind, or no kernel serves where `config` is given.
        CompileError: The kernel cannot be compiled.

    A kernel that is missing where compiling is off (JITGEN_ON_MISS), or while a CUDA graph is
    captured, is named in a warning, once, and torch's operations serve.
    """
    return _quantized(Format.MXFP8, x, offs, masked_m, rounding, config)


def mxfp4(
    x: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    rounding: mx32.Rounding = "up",
    config: QuantizeConfig | Override | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights to MXFP4: e2m1 with a power of two for every 32 along K.

    Args:
        x: As for `mxfp8`; K is even.
        offs: As for `mxfp8`.
        masked_m: As for `mxfp8`.
        rounding: As for `mxfp8`; the specification's ``floor`` clips what is between 6 and 8 times
            the scale.
        config: As for `mxfp8`.

    Returns:
        q: (..., K / 2) uint8, two values a byte; ``q.view(torch.float4_e2m1fn_x2)`` is the same to
            `grouped_gemm`.
        scale: As of `mxfp8`.

    Raises:
        InputError: As for `mxfp8`.
        CompileError: As for `mxfp8`.
    """
    return _quantized(Format.MXFP4, x, offs, masked_m, rounding, config)


def nvfp4(
    x: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    global_scale: Tensor | None = None,
    config: QuantizeConfig | Override | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Quantise activations or weights to NVFP4: e2m1 with an e4m3 for every 16 along K.

    Args:
        x: (M, K) activations, contiguous or, with `offs`, ragged; (G, M, K) masked ones; or
            (G, N, K) weights. Any float type; K is even and need not be a multiple of 16.
        offs: (G,) int32, for ragged rows: as `grouped_gemm` takes it.
        masked_m: As for `mxfp8`.
        global_scale: float32, what dequantised values are multiplied with: (1,), or (G,) where `x`
            has G. None: ``amax(x) / (6 * 448)`` of all of `x`, or of each matrix, rows of no group
            included. A calibrated one saves a pass over `x`; blocks that it is too small for are
            clipped. (ModelOpt calls it ``input_scale`` and ``weight_scale_2``; TRT-LLM's and
            compressed-tensors' global scales are its reciprocal.)
        config: As for `mxfp8`.

    Returns:
        q: (..., K / 2) uint8, two values a byte; ``q.view(torch.float4_e2m1fn_x2)`` is the same to
            `grouped_gemm`.
        scale: float8_e4m3fn in atoms (see `jitgen.formats.atoms`): (blocks, ceil(S / 4), 512), with
            G in front where `x` has it; S = ceil(K / 16), blocks = ceil(M / 128), or
            (M + 127 G) // 128 with `offs`: ``amax / 6 / global_scale`` of its 16 values, rounded.
        global_scale: What was given or found, (1,) or (G,) float32. The product of a's and b's is
            `grouped_gemm`'s alpha.

    Raises:
        InputError: As for `mxfp8`.
        CompileError: As for `mxfp8`.
    """
    overall = nv16.global_scale_of(x, offs, global_scale)
    found = _launched(Format.NVFP4, x, offs, masked_m, overall, "up", config)
    if found is None:
        return nv16.nvfp4(x, offs=offs, global_scale=overall)
    return *found, overall


def _quantized(
    form: Format,
    x: Tensor,
    offs: Tensor | None,
    masked_m: Tensor | None,
    rounding: mx32.Rounding,
    config: QuantizeConfig | Override | None,
) -> Result:
    found = _launched(form, x, offs, masked_m, None, rounding, config)
    if found is not None:
        return found
    of = mx32.mxfp8 if form is Format.MXFP8 else mx32.mxfp4
    return of(x, offs=offs, rounding=rounding)


def _launched(
    form: Format,
    x: Tensor,
    offs: Tensor | None,
    masked_m: Tensor | None,
    global_scale: Tensor | None,
    rounding: str,
    config: QuantizeConfig | Override | None,
) -> Result | None:
    """
    Return what a kernel computes; None where torch's operations are to.

    Warm, that is one lookup and one call of tvm-ffi.
    """
    if is_dynamo_compiling():
        return None
    groups = masked_m if offs is None else offs
    key: tuple[Any, ...] = ()
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
            x.get_device() if devices.has_several_gpus else None,
            form,
            rounding,
            None if config is None else id(config),
            "quantize",  # other operations remember in the same place
            x.__class__,
            groups.__class__,
            global_scale.__class__,
            num_modes(),
            is_grad_enabled() and x.requires_grad,
        )
        session = current.get()
        launch = session.memo.get(key) or similar(session, key, x)
        return launch.call(x, groups, global_scale)  # type: ignore[no-any-return]
    except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
        pass
    given = (x, offs, masked_m, global_scale)
    _check(form, x, offs, masked_m, rounding)
    if common.is_traced(given) or (is_grad_enabled() and x.requires_grad):
        return None
    call = Call(
        x=x,
        offs=offs,
        masked_m=masked_m,
        global_scale=global_scale,
        format=form,
        rounding=Rounding(rounding),
    )
    with common.calling("quantize"):
        return _served(call, config, key)


def _served(
    call: Call, config: QuantizeConfig | Override | None, key: tuple[Any, ...]
) -> Result | None:
    session = current.get()
    device = server(call, session)
    if device is None:
        if config is not None:
            raise InputError(
                "config",
                "is for bfloat16 on a GPU with rows of 16 bytes, K a multiple of 16: leave it out "
                f"for others (got {call.x.dtype} on {call.x.device}, shape {tuple(call.x.shape)})",
            )
        return None
    try:
        return run(call, device, config, key, session)
    except KernelMiss as miss:
        if config is not None:
            raise
        warn_once(f"quantize {call.format} {call.layout}", "torch quantises instead: %s", miss)
        return None


def _check(
    form: Format, x: Tensor, offs: Tensor | None, masked_m: Tensor | None, rounding: str
) -> None:
    """Require what kernels and torch's operations take alike; raises InputError."""
    mx32.check(x, offs, rounding)
    if form is not Format.MXFP8:
        e2m1.check_even(x, "x")
    if masked_m is None:
        return
    if offs is not None or x.dim() != 3:
        raise InputError("masked_m", "is for x (G, M, K), without offs")
    common.require_tensor("masked_m", masked_m)
    common.check_groups("masked_m", masked_m, x.shape[0], ("x", x))
