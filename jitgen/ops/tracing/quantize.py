# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4` as one operation of torch, with the format by its name.

Where it runs it decides what does the work, a kernel or torch's operations: a graph that was traced
on a CPU serves a GPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from jitgen import formats
from jitgen.config import Arch
from jitgen.errors import InputError
from jitgen.formats.atoms import Atoms
from jitgen.formats.protocol import Rows
from jitgen.ops.quantize import call as eager
from jitgen.ops.quantize.config import Format, QuantizeConfig
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor x, str format, Tensor? offs=None, Tensor? masked_m=None, Tensor? global_scale=None, "
    "str rounding='up', str? config=None"
)

_Result = tuple[Tensor, Tensor]


def record(
    form: Format,
    x: Tensor,
    offs: Tensor | None,
    masked_m: Tensor | None,
    global_scale: Tensor | None,
    rounding: str,
    config: QuantizeConfig | None,
) -> _Result:
    """
    Do what `jitgen.ops.quantize.call.quantized` says, through torch's dispatcher.

    Raises:
        InputError: `config` is none, or a tensor is batched by vmap.
    """
    name = name_of(config, x.device)
    found: _Result = operation(x, form.value, offs, masked_m, global_scale, rounding, name)
    return found


def name_of(config: QuantizeConfig | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    if not isinstance(config, QuantizeConfig):
        raise InputError("config", f"must be a QuantizeConfig (got {type(config).__name__})")
    return config.name(_arch(device))


def _arch(device: torch.device) -> Arch:
    return devices.find(device, current.get(), "x").arch


@cache
def _config(name: str, arch: Arch) -> QuantizeConfig:
    """Return the config called `name`: the same object each time, as launches are kept by it."""
    config, of_name = QuantizeConfig.parse(name)
    if of_name is not arch:
        raise InputError("config", f"must be for {arch}, as the tensors are (got {name})")
    return config


def _format(name: str) -> Format:
    if name not in tuple(Format):
        raise InputError("format", f"must be one of {', '.join(Format)} (got {name!r})")
    return Format(name)


def _run(
    x: Tensor,
    form: str,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    global_scale: Tensor | None = None,
    rounding: str = "up",
    config: str | None = None,
) -> _Result:
    chosen = None if config is None else _config(config, _arch(x.device))
    return eager.quantized(
        _format(form),
        x,
        offs,
        masked_m,
        global_scale,
        rounding,  # type: ignore[arg-type]
        chosen,
    )


def _fake(
    x: Tensor,
    form: str,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    _global_scale: Tensor | None = None,
    rounding: str = "up",
    config: str | None = None,
) -> _Result:
    wanted = _format(form)
    eager.check(wanted, x, offs, masked_m, rounding)
    if config is not None:
        _config(config, _arch(x.device))
    of_scales = formats.find(wanted.scales)
    if not isinstance(of_scales, Atoms):
        raise TypeError(f"the scales of {wanted} lie in no atoms")
    *front, size_k = x.shape
    rows = Rows(tuple(front), 0 if offs is None else offs.shape[0])
    is_packed = wanted is not Format.MXFP8
    q_shape = (*front, size_k // 2 if is_packed else size_k)
    return (
        x.new_empty(q_shape, dtype=torch.uint8 if is_packed else torch.float8_e4m3fn),
        x.new_empty(of_scales.a_shape(rows, size_k), dtype=of_scales.dtype),
    )


operation = register(
    Operation(schema=f"quantize({_ARGUMENTS}) -> (Tensor, Tensor)", run=_run, fake=_fake)
)
