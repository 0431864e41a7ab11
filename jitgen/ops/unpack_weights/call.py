# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.quantize.unpack_mxfp4`: a kernel on GPUs that have one, torch's operations on other devices.

Both give the same bits. `jitgen.grouped_gemm` launches the kernel itself: see
`jitgen.ops.grouped_gemm.prepacked_algorithms`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Arch, Config
from jitgen.config.unpack_weights import UnpackWeightsConfig, UnpackWeightsProblem
from jitgen.errors import InputError, KernelMiss
from jitgen.events import warn_once
from jitgen.formats import unpacked as in_torch
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.dispatcher import is_traced, mark_written, require_apart, require_plain
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.launch import AnyLaunch, Family, chosen
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.targets.legality import require, rules, target

Result = tuple[Tensor, Tensor]
_OP = UnpackWeightsProblem.op


def unpack_mxfp4(
    weights: PrepackedWeights,
    *,
    out: Result | None = None,
    config: UnpackWeightsConfig | Override | None = None,
) -> Result:
    """
    Turn prepacked MXFP4 weights into FP8 ones with scales of rows, as `grouped_gemm` takes them.

    `grouped_gemm` does this itself for many rows, if it is exact and predicted to be faster. This
    function is for callers that keep the result, or have their own workspace. On Hopper it is one
    kernel that reads the weights once; on other devices torch's operations do it. The host does not
    wait for the device.

    Args:
        weights: Prepacked as exact1 or folded1. Where `weights.row_spread` is above 14, small
            values of a row are rounded to e4m3's subnormal numbers.
        out: Where results go, a tuple in the order in which they are returned: contiguous tensors
            as described below.
        config: The kernel to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`. Only on devices with such a kernel.

    Returns:
        b: (G, N, K) float8_e4m3fn.
        b_scale: (G, N) float32.

    Raises:
        InputError: An argument is wrong.
        CompileError: The kernel cannot be compiled.

    If the kernel is missing and compiling is off (JITGEN_ON_MISS), or a CUDA graph is being
    captured, torch's operations are used, and a warning names the kernel, once.
    """
    in_torch.check(weights)
    common.refuse_gradients({"weights.factor": weights.factor}, _OP)
    result = _new(weights) if out is None else require_out(out, weights)
    if not is_traced((weights.values, weights.factor, *result)):
        with calling(_OP):
            given = {"weights": weights.values, "weights.factor": weights.factor}
            given |= {"out[0]": result[0], "out[1]": result[1]}
            require_plain(given)
            require_apart(given, ("out[0]", "out[1]"))
            mark_written(result)
            session = current.get()
            device = _server(weights, session)
            if device is not None and _is_done(weights, result, device, config, session):
                return result
    if config is not None:
        raise InputError("config", f"is for a GPU with a kernel (got {weights.device})")
    for mine, found in zip(result, in_torch.unpacked(weights), strict=True):
        mine.copy_(found)
    return result


def _new(weights: PrepackedWeights) -> Result:
    """Return uninitialised tensors for the b and b_scale of `weights`."""
    shape = (weights.groups, weights.n, weights.k)
    b = weights.values.new_empty(shape, dtype=torch.float8_e4m3fn)
    return b, weights.factor.new_empty(shape[:2])


def require_out(out: object, weights: PrepackedWeights) -> Result:
    """Require tensors that a result fits into."""
    if not isinstance(out, tuple) or len(out) != 2:
        raise InputError("out", f"must be two tensors, b and b_scale (got {type(out).__name__})")
    shape = (weights.groups, weights.n, weights.k)
    for name, tensor, dtype, wanted in (
        ("out[0]", out[0], torch.float8_e4m3fn, shape),
        ("out[1]", out[1], torch.float32, shape[:2]),
    ):
        common.require(
            name,
            tensor,
            [dtype],
            shape=(wanted, "for these weights"),
            like=("weights", weights.values.device),
        )
        if not tensor.is_contiguous():
            raise InputError(name, f"must be contiguous (got strides {tensor.stride()})")
    common.refuse_gradients({"out[0]": out[0], "out[1]": out[1]}, _OP)
    return out


def _server(weights: PrepackedWeights, session: Session) -> Device | None:
    """
    Return the GPU that has a kernel for these weights; None if torch's operations unpack them.
    """
    try:
        device = devices.find(weights.device, session, "weights")
    except InputError:  # nothing of jitgen's runs there, but torch does
        return None
    has_kernel = device.arch.is_gpu and _OP in target(device.arch).operations
    return device if has_kernel else None


def _is_done(
    weights: PrepackedWeights,
    result: Result,
    device: Device,
    config: UnpackWeightsConfig | Override | None,
    session: Session,
) -> bool:
    """Launch a kernel; say whether there was one."""
    wanted: Config
    family = Family(arch=device.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = UnpackWeightsProblem(
            groups=weights.groups,
            m=weights.groups * weights.n,
            k=weights.k,
            b_layout=weights.layout,
        )
        wanted, neighbours = chosen(session, problem, device.arch, "weights")
        family = Family(arch=device.arch, problem=problem)
    else:
        wanted = _require_fit(config, weights, device.arch)
    alignment = rules(device.arch, _OP).alignment
    tensors = [("weights", weights.values, alignment), ("out[0]", result[0], alignment)]
    common.check_memory(tensors, ("weights", weights.values.device), has_memory=True)
    try:
        function, served = device.entry(session, config or wanted, neighbours)
    except KernelMiss as miss:
        if config is not None:
            raise
        warn_once(f"{_OP} {weights.layout}", "torch unpacks instead: %s", miss)
        return False
    launch = AnyLaunch(function=function, tail=device.tail, config=served, awaited=None)
    launch = family.recorded(served).counted(launch, weights.n)
    launch.function(weights.values, weights.factor, *result, *launch.tail)
    return True


def _require_fit(asked: object, weights: PrepackedWeights, arch: Arch) -> UnpackWeightsConfig:
    config = explicit_config(asked, UnpackWeightsConfig, arch)
    if config.b_layout is not weights.layout:
        raise InputError(
            "config",
            f"must be for {weights.layout}, as weights are (got one for {config.b_layout})",
        )
    require(config, arch)
    return config


def check_direct(config: UnpackWeightsConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel: values, factor, b and b_scale; N and K of the
    weights are those of b.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

    session = current.get()
    names = ("values", "factor", "b", "b_scale")
    found = direct.read(config, arch, session, arguments, names)
    values, b = found["values"], found["b"]
    common.require("b", b, rank=(3, "(G, N, K)"))
    _, n, k = b.shape
    weights = PrepackedWeights(
        values=values, factor=found["factor"], n=n, k=k, layout=config.b_layout
    )
    require_out((b, found["b_scale"]), weights)
    alignment = rules(arch, config.op).alignment
    tensors = [("values", values, alignment), ("b", b, alignment)]
    common.check_memory(tensors, ("values", values.device), has_memory=True)
