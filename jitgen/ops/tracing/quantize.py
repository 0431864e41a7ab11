# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4` as one operation of torch, with the format by its name.

Where it runs it decides what does the work, a kernel or torch's operations: a graph that was traced
on a CPU serves a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.quantize import Format, QuantizeConfig
from jitgen.errors import InputError
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.quantize import call as eager
from jitgen.ops.quantize.dispatch import shapes_of
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
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
    out: _Result | None,
    config: QuantizeConfig | Override | None,
) -> _Result:
    """
    Do what `jitgen.ops.quantize.call.quantized` says, through torch's dispatcher.

    Raises:
        InputError: `config` is none, or a tensor is batched by vmap.
    """
    rest = (offs, masked_m, global_scale, rounding, name_of(config, x.device))
    return call(out, x, form.value, *rest)


def call(out: _Result | None, *given: Any) -> _Result:
    """Call the operation, with the names of a format and a config."""
    if out is None:
        found: _Result = operation(*given)
        return found
    operation_out(*out, *given)
    return out


def name_of(config: QuantizeConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, QuantizeConfig, _arch(device))


def _arch(device: torch.device) -> Arch:
    return devices.find(device, current.get(), "x").arch


def _format(name: str) -> Format:
    if name not in tuple(Format):
        raise InputError("format", f"must be one of {', '.join(Format)} (got {name!r})")
    return Format(name)


def _run(*given: Any) -> _Result:
    return _quantized(None, *given)


def _run_out(q: Tensor, scale: Tensor, *given: Any) -> None:
    _quantized((q, scale), *given)


def _quantized(
    out: _Result | None,
    x: Tensor,
    form: str,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    global_scale: Tensor | None = None,
    rounding: str = "up",
    config: str | None = None,
) -> _Result:
    chosen = None if config is None else of_graph(config, QuantizeConfig, _arch(x.device))
    return eager.quantized(
        _format(form),
        x,
        offs,
        masked_m,
        global_scale,
        rounding,  # type: ignore[arg-type]
        out,
        chosen,
    )


def _fake(*given: Any) -> _Result:
    x, form, offs = _checked(*given)
    (q_shape, q_dtype), (shape, dtype) = shapes_of(form, x, offs)
    return x.new_empty(q_shape, dtype=q_dtype), x.new_empty(shape, dtype=dtype)


def _fake_out(q: Tensor, scale: Tensor, *given: Any) -> None:
    x, form, offs = _checked(*given)
    eager.check_out((q, scale), form, x, offs)


def _checked(
    x: Tensor,
    form: str,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    _global_scale: Tensor | None = None,
    rounding: str = "up",
    config: str | None = None,
) -> tuple[Tensor, Format, Tensor | None]:
    wanted = _format(form)
    eager.check(wanted, x, offs, masked_m, rounding)
    if config is not None:
        of_graph(config, QuantizeConfig, _arch(x.device))
    return x, wanted, offs


operation = register(
    Operation(schema=f"quantize({_ARGUMENTS}) -> (Tensor, Tensor)", run=_run, fake=_fake)
)
operation_out = register(
    Operation(
        schema=f"quantize.out(Tensor(a!) out, Tensor(b!) scale, {_ARGUMENTS}) -> ()",
        run=_run_out,
        fake=_fake_out,
    )
)
