# SPDX-License-Identifier: Apache-2.0
"""
`combine` as operations of torch: one that returns its result, and one that writes to `out`.

In a graph a config is its kernel's name, because graphs hold no objects of ours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.combine import CombineConfig
from jitgen.ops.combine import call as eager
from jitgen.ops.combine.dispatch import new_out, require_fit
from jitgen.ops.combine.validate import Arguments, validate
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = "Tensor y, Tensor inverse, Tensor topk_weights, Tensor? shared=None, str? config=None"
_NAMES = tuple(part.split("=")[0].split()[-1] for part in _ARGUMENTS.split(", "))


def record(given: Arguments, config: CombineConfig | Override | None) -> Tensor:
    """
    Do what `combine` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.y.device))


def call(given: Arguments, config: str | None) -> Tensor:
    """Call the operation, with the name of a config; return the result."""
    rest = (given.y, given.inverse, given.topk_weights, given.shared, config)
    if given.out is None:
        result: Tensor = operation(*rest)
        return result
    operation_out(given.out, *rest)
    return given.out


def name_of(config: CombineConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, CombineConfig, devices.find(device, current.get(), "y").arch)


def _check(given: Arguments, config: CombineConfig | Override | None) -> None:
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
        **dict(zip(_NAMES, given, strict=False)),
        "out": out,
    }
    if named["config"] is not None:
        arch = devices.find(named["y"].device, current.get(), "y").arch
        named["config"] = of_graph(named["config"], CombineConfig, arch)
    return named


def _run(*given: Any) -> Tensor:
    return eager.combine(**_arguments(None, *given))


def _run_out(out: Tensor, *given: Any) -> None:
    eager.combine(**_arguments(out, *given))


def _checked(out: Tensor | None, *given: Any) -> Arguments:
    named = _arguments(out, *given)
    config = named.pop("config")
    arguments = Arguments(**named)
    _check(arguments, config)
    return arguments


def _fake(*given: Any) -> Tensor:
    return new_out(_checked(None, *given))


def _fake_out(out: Tensor, *given: Any) -> None:
    _checked(out, *given)


operation = register(Operation(schema=f"combine({_ARGUMENTS}) -> Tensor", run=_run, fake=_fake))
operation_out = register(
    Operation(
        schema=f"combine.out(Tensor(a!) out, {_ARGUMENTS}) -> ()", run=_run_out, fake=_fake_out
    )
)
