# SPDX-License-Identifier: Apache-2.0
"""
`permute_quantize` as operations of torch: one that returns q, and one that writes it to `out`.

Both return scales; where a kernel finds none, an empty tensor stands for them, because results of
an operation are neither None nor one of its arguments. In a graph a config is its kernel's name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.permute_quantize import PermuteQuantizeConfig
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.permute_quantize import call as eager
from jitgen.ops.permute_quantize.dispatch import (
    Result,
    new_q,
    new_scale,
    require_fit,
)
from jitgen.ops.permute_quantize.validate import Arguments, format_of, validate
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor x, Tensor permutation, int top_k, Tensor? offs=None, Tensor? m_indices=None, "
    "Tensor? masked_m=None, Tensor? inverse=None, str scale_granularity='block128', "
    "ScalarType? q_dtype=None, Tensor? scale=None, bool power_of_two=False, str rounding='up', "
    "str? config=None"
)
_NAMES = tuple(part.split("=")[0].split()[-1] for part in _ARGUMENTS.split(", "))


def record(given: Arguments, config: PermuteQuantizeConfig | Override | None) -> Result:
    """
    Do what `permute_quantize` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.x.device))


def call(given: Arguments, config: str | None) -> Result:
    """Call the operation, with the name of a config; return q and scale."""
    rows = (given.offs, given.m_indices, given.masked_m, given.inverse)
    options = (given.scale_granularity, given.q_dtype, given.scale, given.power_of_two)
    rest = (given.x, given.permutation, given.top_k, *rows, *options, given.rounding, config)
    if given.out is None:
        q, scale = operation(*rest)
    else:
        q, scale = given.out, operation_out(given.out, *rest)
    return q, scale if _form(given).has_own_scales else given.scale


def name_of(config: PermuteQuantizeConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, PermuteQuantizeConfig, devices.find(device, current.get(), "x").arch)


def _form(given: Arguments) -> Any:
    return format_of(given.scale_granularity, given.q_dtype)


def _check(given: Arguments, config: PermuteQuantizeConfig | Override | None) -> None:
    """
    Raise what a call without a tracer would.

    Where a rule hangs on a size that nobody knows before there are values, the operation asks when
    it runs.
    """
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
        "power_of_two": False,
        "rounding": "up",
        **dict(zip(_NAMES, given, strict=False)),
        "out": out,
    }
    if named["config"] is not None:
        arch = devices.find(named["x"].device, current.get(), "x").arch
        named["config"] = of_graph(named["config"], PermuteQuantizeConfig, arch)
    return named


def _scale(named: dict[str, Any], scale: Tensor | None) -> Tensor:
    if scale is None or scale is named["scale"]:
        return named["x"].new_empty(0, dtype=torch.float32)  # type: ignore[no-any-return]
    return scale


def _run(*given: Any) -> tuple[Tensor, Tensor]:
    named = _arguments(None, *given)
    q, scale = eager.permute_quantize(**named)
    return q, _scale(named, scale)


def _run_out(out: Tensor, *given: Any) -> Tensor:
    named = _arguments(out, *given)
    return _scale(named, eager.permute_quantize(**named)[1])


def _fake(*given: Any) -> tuple[Tensor, Tensor]:
    arguments, scale = _faked(None, *given)
    return new_q(arguments, _form(arguments)), scale


def _fake_out(out: Tensor, *given: Any) -> Tensor:
    return _faked(out, *given)[1]


def _faked(out: Tensor | None, *given: Any) -> tuple[Arguments, Tensor]:
    named = _arguments(out, *given)
    config = named.pop("config")
    arguments = Arguments(**named)
    _check(arguments, config)
    groups = arguments.groups
    num_groups = groups.shape[0] if groups is not None and arguments.m_indices is None else 0
    return arguments, _scale(named, new_scale(arguments, _form(arguments), num_groups))


operation = register(
    Operation(schema=f"permute_quantize({_ARGUMENTS}) -> (Tensor, Tensor)", run=_run, fake=_fake)
)
operation_out = register(
    Operation(
        schema=f"permute_quantize.out(Tensor(a!) out, {_ARGUMENTS}) -> Tensor",
        run=_run_out,
        fake=_fake_out,
    )
)
