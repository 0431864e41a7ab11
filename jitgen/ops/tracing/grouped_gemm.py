# SPDX-License-Identifier: Apache-2.0
"""
`grouped_gemm` as operations of torch: one that returns its result, and one that writes to `out`.

In a graph a config is its kernel's name, because graphs hold no objects of ours.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.grouped_gemm import KernelConfig
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.grouped_gemm import call as eager
from jitgen.ops.grouped_gemm.dispatch import require_bias, require_fit
from jitgen.ops.grouped_gemm.validate import Arguments, require_differentiable, validate
from jitgen.ops.tracing.gradients import differentiated, of_grouped_gemm
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor? a_scale=None, Tensor? b_scale=None, Tensor? offs=None, "
    "Tensor? m_indices=None, Tensor? masked_m=None, Tensor? alpha=None, "
    "ScalarType? out_dtype=None, SymInt? expected_m=None, bool? min_latency=None, "
    "str? config=None, Tensor? bias=None, str? numerics=None"
)

_NAMES = tuple(part.split("=")[0].split()[-1] for part in _ARGUMENTS.split(", "))


def record(given: Arguments, config: KernelConfig | Override | None) -> Tensor:
    """
    Do what `grouped_gemm` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    name = name_of(config, given.a.device)
    chosen_by = (given.expected_m, given.min_latency, name)
    rest = (given.out_dtype, *chosen_by, given.bias, given.numerics)
    tensors = (given.a, given.b, given.a_scale, given.b_scale)
    groups = (given.offs, given.m_indices, given.masked_m)
    if given.out is None:
        result: Tensor = operation(*tensors, *groups, given.alpha, *rest)
        return result
    operation_out(given.out, *tensors, *groups, given.alpha, *rest)
    return given.out


def differentiable(given: Arguments, config: KernelConfig | Override | None) -> Tensor:
    """
    Do what `grouped_gemm` says in autograd's hands, past the dispatcher: no tracer wants to see it.

    Raises:
        InputError: A tensor needs a gradient that there is not, or an argument is wrong.
    """
    require_differentiable(given._asdict())
    values = {name: getattr(given, name, None) for name in _NAMES}
    return differentiated(partial(_run_for, config), values)


def _run_for(config: KernelConfig | Override | None, *given: Any) -> Tensor:
    return eager.grouped_gemm(**_arguments(None, *given) | {"config": config})


def name_of(config: KernelConfig | Override | None, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, KernelConfig, _arch(device))


def _check(given: Arguments, config: KernelConfig | Override | None) -> None:
    """
    Raise what a call without a tracer would.

    Where a rule hangs on a size that nobody knows before there are values, the operation asks when
    it runs.
    """
    if isinstance(given.expected_m, torch.SymInt):
        given = given._replace(expected_m=None)
    try:
        facts = validate(given, current.get(), has_memory=False)
    except RuntimeError as error:
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        if not isinstance(error, GuardOnDataDependentSymNode):
            raise
    else:
        if config is not None:
            require_bias(require_fit(config, facts, given.numerics), given.bias)


def _arguments(  # noqa: PLR0913, PLR0917  # the schema's, behind out
    out: Tensor | None,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    alpha: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,
    min_latency: bool | None = None,
    config: str | None = None,
    bias: Tensor | None = None,
    numerics: str | None = None,
) -> dict[str, Any]:
    """Return what the public function takes; torch leaves out what is the schema's default."""
    return {
        "a": a,
        "b": b,
        "a_scale": a_scale,
        "b_scale": b_scale,
        "offs": offs,
        "m_indices": m_indices,
        "masked_m": masked_m,
        "alpha": alpha,
        "out": out,
        "out_dtype": out_dtype,
        "expected_m": expected_m,
        "min_latency": min_latency,
        "bias": bias,
        "numerics": numerics,
        "config": None if config is None else config_of(config, a.device),
    }


def config_of(name: str, device: torch.device) -> KernelConfig | Override:
    """
    Return the config that `name` stands for in a graph; the inverse of `name_of`.

    Raises:
        InputError: It is for another target than that of `device`.
    """
    found: KernelConfig | Override = of_graph(name, KernelConfig, _arch(device))
    return found


def _arch(device: torch.device) -> Arch:
    return devices.find(device, current.get()).arch


def _run(*given: Any) -> Tensor:
    return eager.grouped_gemm(**_arguments(None, *given))


def _run_out(out: Tensor, *given: Any) -> None:
    eager.grouped_gemm(**_arguments(out, *given))


def _fake(*given: Any) -> Tensor:
    named = _arguments(None, *given)
    config = named.pop("config")
    _check(Arguments(**named), config)
    a: Tensor = named["a"]
    shape = (*a.shape[:-1], named["b"].shape[1])
    return a.new_empty(shape, dtype=named["out_dtype"] or torch.bfloat16)


def _fake_out(out: Tensor, *given: Any) -> None:
    named = _arguments(out, *given)
    config = named.pop("config")
    _check(Arguments(**named), config)


operation = register(
    Operation(
        schema=f"grouped_gemm({_ARGUMENTS}) -> Tensor",
        run=_run,
        fake=_fake,
        autograd=of_grouped_gemm,
    )
)
operation_out = register(
    Operation(
        schema=f"grouped_gemm.out(Tensor(a!) out, {_ARGUMENTS}) -> ()",
        run=_run_out,
        fake=_fake_out,
        autograd=of_grouped_gemm,
    )
)
