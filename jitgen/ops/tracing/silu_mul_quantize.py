# SPDX-License-Identifier: Apache-2.0
"""
`silu_mul_quantize` as operations of torch: one that returns q, and one that writes it to `out`.

Both return scales; where a kernel finds none, an empty tensor stands for them, because results of
an operation are neither None nor one of its arguments. In a graph a config is its kernel's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from jitgen.config.silu_mul_quantize import Scales, SiluMulQuantizeConfig
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.silu_mul_quantize import call as eager
from jitgen.ops.silu_mul_quantize.dispatch import (
    Result,
    new_q,
    new_scale,
    require_fit,
)
from jitgen.ops.silu_mul_quantize.validate import Arguments, validate
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor x, Tensor? offs=None, Tensor? m_indices=None, Tensor? masked_m=None, "
    "str scale_granularity='block128', Tensor? scale=None, str activation='swiglu', "
    "bool interleaved=False, float? limit=None, float? alpha=None, bool power_of_two=False, "
    "SymInt? expected_m=None, str? config=None"
)
_NAMES = tuple(part.split("=")[0].split()[-1] for part in _ARGUMENTS.split(", "))


def record(given: Arguments, config: SiluMulQuantizeConfig | Override | None) -> Result:
    """
    Do what `silu_mul_quantize` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.x.device))


def call(given: Arguments, config: str | None) -> Result:
    """Call the operation, with the name of a config; return q and scale."""
    tensors = (given.x, given.offs, given.m_indices, given.masked_m)
    options = (given.scale_granularity, given.scale, given.activation, given.interleaved)
    rest = (given.limit, given.alpha, given.power_of_two, given.expected_m, config)
    if given.out is None:
        q, scale = operation(*tensors, *options, *rest)
    else:
        q, scale = given.out, operation_out(given.out, *tensors, *options, *rest)
    return q, scale if given.scale_granularity in ("block128", "row") else given.scale


def name_of(config: SiluMulQuantizeConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, SiluMulQuantizeConfig, devices.find(device, current.get(), "x").arch)


def _check(given: Arguments, config: SiluMulQuantizeConfig | Override | None) -> None:
    """
    Raise what a call without a tracer would.

    Where a rule hangs on a size that nobody knows before there are values, the operation asks when
    it runs.
    """
    if isinstance(given.expected_m, torch.SymInt):
        given = replace(given, expected_m=None)
    try:
        facts = validate(given, current.get(), has_memory=False)
    except RuntimeError as error:
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        if not isinstance(error, GuardOnDataDependentSymNode):
            raise
    else:
        if config is not None:
            require_fit(config, given, facts)


def _arguments(out: Tensor | None, *given: Any) -> dict[str, Any]:
    """Return what the public function takes; torch leaves out what is the schema's default."""
    named: dict[str, Any] = {
        **dict.fromkeys(_NAMES),
        "scale_granularity": "block128",
        "activation": "swiglu",
        "interleaved": False,
        "power_of_two": False,
        **dict(zip(_NAMES, given, strict=False)),
        "out": out,
    }
    if named["config"] is not None:
        arch = devices.find(named["x"].device, current.get(), "x").arch
        named["config"] = of_graph(named["config"], SiluMulQuantizeConfig, arch)
    return named


def _scale(named: dict[str, Any], scale: Tensor | None) -> Tensor:
    if scale is None or scale is named["scale"]:
        return named["x"].new_empty(0, dtype=torch.float32)  # type: ignore[no-any-return]
    return scale


def _run(*given: Any) -> tuple[Tensor, Tensor]:
    named = _arguments(None, *given)
    q, scale = eager.silu_mul_quantize(**named)
    return q, _scale(named, scale)


def _run_out(out: Tensor, *given: Any) -> Tensor:
    named = _arguments(out, *given)
    return _scale(named, eager.silu_mul_quantize(**named)[1])


def _fake(*given: Any) -> tuple[Tensor, Tensor]:
    named = _arguments(None, *given)
    x, scales = named["x"], Scales(named["scale_granularity"])
    return new_q(x, x.shape[-1] // 2, scales), _fake_scale(named)


def _fake_out(out: Tensor, *given: Any) -> Tensor:
    return _fake_scale(_arguments(out, *given))


def _fake_scale(named: dict[str, Any]) -> Tensor:
    config = named.pop("config")
    _check(Arguments(**named), config)
    x = named["x"]
    return _scale(named, new_scale(x, x.shape[-1] // 2, Scales(named["scale_granularity"])))


operation = register(
    Operation(schema=f"silu_mul_quantize({_ARGUMENTS}) -> (Tensor, Tensor)", run=_run, fake=_fake)
)
operation_out = register(
    Operation(
        schema=f"silu_mul_quantize.out(Tensor(a!) out, {_ARGUMENTS}) -> Tensor",
        run=_run_out,
        fake=_fake_out,
    )
)
