# SPDX-License-Identifier: Apache-2.0
"""
`moe_fc2_dense` as operations of torch: one that returns its result, and one that writes to `out`.

In a graph a config is its kernel's name, because graphs hold no objects of ours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.moe_fc2_dense import MoeFc2DenseConfig
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.moe_fc2_dense import call as eager
from jitgen.ops.moe_fc2_dense.dispatch import require_fit
from jitgen.ops.moe_fc2_dense.validate import Arguments, validate
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor alpha, "
    "ScalarType? out_dtype=None, str? config=None"
)
_NAMES = tuple(part.split("=")[0].split()[-1] for part in _ARGUMENTS.split(", "))


def record(given: Arguments, config: MoeFc2DenseConfig | Override | None) -> Tensor:
    """
    Do what `moe_fc2_dense` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.a.device))


def call(given: Arguments, config: str | None) -> Tensor:
    """Call the operation, with the name of a config; return the result."""
    tensors = (given.a, given.b, given.a_scale, given.b_scale, given.alpha)
    if given.out is None:
        result: Tensor = operation(*tensors, given.out_dtype, config)
        return result
    operation_out(given.out, *tensors, given.out_dtype, config)
    return given.out


def name_of(config: MoeFc2DenseConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, MoeFc2DenseConfig, devices.find(device, current.get()).arch)


def _check(given: Arguments, config: MoeFc2DenseConfig | Override | None) -> None:
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
        named["config"] = of_graph(named["config"], MoeFc2DenseConfig, arch)
    return named


def _run(*given: Any) -> Tensor:
    return eager.moe_fc2_dense(**_arguments(None, *given))


def _run_out(out: Tensor, *given: Any) -> None:
    eager.moe_fc2_dense(**_arguments(out, *given))


def _checked(out: Tensor | None, *given: Any) -> dict[str, Any]:
    named = _arguments(out, *given)
    config = named.pop("config")
    _check(Arguments(**named), config)
    return named


def _fake(*given: Any) -> Tensor:
    named = _checked(None, *given)
    a: Tensor = named["a"]
    shape = (a.shape[0], named["b"].shape[1])
    return a.new_empty(shape, dtype=named["out_dtype"] or torch.bfloat16)


def _fake_out(out: Tensor, *given: Any) -> None:
    _checked(out, *given)


operation = register(
    Operation(schema=f"moe_fc2_dense({_ARGUMENTS}) -> Tensor", run=_run, fake=_fake)
)
operation_out = register(
    Operation(
        schema=f"moe_fc2_dense.out(Tensor(a!) out, {_ARGUMENTS}) -> ()",
        run=_run_out,
        fake=_fake_out,
    )
)
