# SPDX-License-Identifier: Apache-2.0
"""
`grouped_gemm_wgrad` as operations of torch: one that returns its result, and one that writes to
`out`.

In a graph a config is its kernel's name, because graphs hold no objects of ours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.grouped_gemm_wgrad import call as eager
from jitgen.ops.grouped_gemm_wgrad.dispatch import require_fit
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments, require_differentiable, validate
from jitgen.ops.tracing.gradients import differentiated_wgrad, of_grouped_gemm_wgrad
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor dy, Tensor a, Tensor? offs=None, Tensor? masked_m=None, "
    "ScalarType? out_dtype=None, SymInt? expected_m=None, str? config=None"
)
_NAMES = tuple(part.split("=")[0].split()[-1] for part in _ARGUMENTS.split(", "))


def record(given: Arguments, config: GroupedGemmWgradConfig | Override | None) -> Tensor:
    """
    Do what `grouped_gemm_wgrad` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.a.device))


def differentiable(given: Arguments, config: GroupedGemmWgradConfig | Override | None) -> Tensor:
    """
    Do what `grouped_gemm_wgrad` says in autograd's hands, past the dispatcher: no tracer wants to
    see it.

    Raises:
        InputError: A tensor needs a gradient that there is not, or an argument is wrong.
    """
    require_differentiable(given.tensors)
    values = {name: getattr(given, name, None) for name in _NAMES}
    return differentiated_wgrad(partial(_run_for, config), values)


def _run_for(config: GroupedGemmWgradConfig | Override | None, *given: Any) -> Tensor:
    return eager.grouped_gemm_wgrad(**_arguments(None, *given) | {"config": config})


def call(given: Arguments, config: str | None) -> Tensor:
    """Call the operation, with the name of a config; return the result."""
    rest = (given.offs, given.masked_m, given.out_dtype, given.expected_m, config)
    if given.out is None:
        result: Tensor = operation(given.dy, given.a, *rest)
        return result
    operation_out(given.out, given.dy, given.a, *rest)
    return given.out


def name_of(config: GroupedGemmWgradConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, GroupedGemmWgradConfig, devices.find(device, current.get()).arch)


def _check(given: Arguments, config: GroupedGemmWgradConfig | Override | None) -> None:
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
            require_fit(config, facts)


def _arguments(out: Tensor | None, *given: Any) -> dict[str, Any]:
    """Return what the public function takes; torch leaves out what is the schema's default."""
    named: dict[str, Any] = {
        **dict.fromkeys(_NAMES),
        **dict(zip(_NAMES, given, strict=False)),
        "out": out,
    }
    if named["config"] is not None:
        arch = devices.find(named["a"].device, current.get()).arch
        named["config"] = of_graph(named["config"], GroupedGemmWgradConfig, arch)
    return named


def _run(*given: Any) -> Tensor:
    return eager.grouped_gemm_wgrad(**_arguments(None, *given))


def _run_out(out: Tensor, *given: Any) -> None:
    eager.grouped_gemm_wgrad(**_arguments(out, *given))


def _checked(out: Tensor | None, *given: Any) -> dict[str, Any]:
    named = _arguments(out, *given)
    config = named.pop("config")
    _check(Arguments(**named), config)
    return named


def _fake(*given: Any) -> Tensor:
    named = _checked(None, *given)
    dy, a = named["dy"], named["a"]
    groups = named["masked_m"] if named["offs"] is None else named["offs"]
    shape = (groups.shape[0], dy.shape[-1], a.shape[-1])
    result: Tensor = a.new_empty(shape, dtype=named["out_dtype"] or torch.bfloat16)
    return result


def _fake_out(out: Tensor, *given: Any) -> None:
    _checked(out, *given)


operation = register(
    Operation(
        schema=f"grouped_gemm_wgrad({_ARGUMENTS}) -> Tensor",
        run=_run,
        fake=_fake,
        autograd=of_grouped_gemm_wgrad,
    )
)
operation_out = register(
    Operation(
        schema=f"grouped_gemm_wgrad.out(Tensor(a!) out, {_ARGUMENTS}) -> ()",
        run=_run_out,
        fake=_fake_out,
        autograd=of_grouped_gemm_wgrad,
    )
)
