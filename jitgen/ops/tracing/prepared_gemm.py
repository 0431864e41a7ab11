# SPDX-License-Identifier: Apache-2.0
"""
`grouped_gemm` with prepared weights as operations of torch: what `jitgen.ops.tracing.grouped_gemm`
is for others.

In a graph the weights are their two tensors, N and the name of their layout; K is a's. How far
exponents of a row differ is not in it, for that is known of values, and a graph outlives those. So
weights are not unpacked there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.grouped_gemm import KernelConfig
from jitgen.formats.prepared import PreparedWeights
from jitgen.ops.grouped_gemm import prepared_call as eager
from jitgen.ops.grouped_gemm.dispatch import require_bias, require_fit
from jitgen.ops.grouped_gemm.prepared_validate import PreparedArguments, validate
from jitgen.ops.tracing.grouped_gemm import config_of, name_of
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor b_factor, int n, str b_layout, Tensor? a_scale=None, "
    "Tensor? offs=None, Tensor? m_indices=None, Tensor? masked_m=None, Tensor? bias=None, "
    "ScalarType? out_dtype=None, SymInt? expected_m=None, bool? min_latency=None, "
    "str? config=None, str? numerics=None"
)


def record(given: PreparedArguments, config: KernelConfig | Override | None) -> Tensor:
    """
    Do what `grouped_gemm` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.a.device))


def call(given: PreparedArguments, config: str | None) -> Tensor:
    """Call the operation."""
    a, b = given.a, given.b
    weights = (b.values, b.factor, b.n, str(b.layout))
    groups = (given.offs, given.m_indices, given.masked_m)
    chosen_by = (given.expected_m, given.min_latency, config)
    rest = (given.bias, given.out_dtype, *chosen_by, given.numerics)
    if given.out is None:
        result: Tensor = operation(a, *weights, given.a_scale, *groups, *rest)
        return result
    operation_out(given.out, a, *weights, given.a_scale, *groups, *rest)
    return given.out


def _check(
    given: PreparedArguments, config: KernelConfig | Override | None
) -> tuple[int, ...] | None:
    """
    Raise what a call without a tracer would; return the shape of the result.

    Where a rule hangs on a size that nobody knows before there are values, the operation asks when
    it runs, and the shape is None.
    """
    if isinstance(given.expected_m, torch.SymInt):
        given = given._replace(expected_m=None)
    try:
        facts = validate(given, current.get(), has_memory=False)
    except RuntimeError as error:
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        if not isinstance(error, GuardOnDataDependentSymNode):
            raise
        return None
    if config is not None:
        require_bias(require_fit(config, facts, given.numerics), given.bias)
    return facts.shape


def _arguments(  # noqa: PLR0913, PLR0917  # the schema's, behind out
    out: Tensor | None,
    a: Tensor,
    b: Tensor,
    b_factor: Tensor,
    n: int,
    b_layout: str,
    a_scale: Tensor | None = None,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,
    min_latency: bool | None = None,
    config: str | None = None,
    numerics: str | None = None,
) -> tuple[PreparedArguments, KernelConfig | Override | None]:
    """Return what the eager function takes; torch leaves out what is the schema's default."""
    weights = PreparedWeights(
        values=b,
        factor=b_factor,
        n=n,
        k=int(a.shape[-1]),
        layout=b_layout,  # type: ignore[arg-type]
    )
    given = PreparedArguments(
        a=a,
        b=weights,
        a_scale=a_scale,
        b_scale=None,
        offs=offs,
        m_indices=m_indices,
        masked_m=masked_m,
        alpha=None,
        bias=bias,
        out=out,
        out_dtype=out_dtype,
        expected_m=expected_m,
        min_latency=min_latency,
        numerics=numerics,
    )
    return given, None if config is None else config_of(config, a.device)


def _run(*given: Any) -> Tensor:
    return eager.grouped_gemm(*_arguments(None, *given))


def _run_out(out: Tensor, *given: Any) -> None:
    eager.grouped_gemm(*_arguments(out, *given))


def _fake(*given: Any) -> Tensor:
    arguments, config = _arguments(None, *given)
    shape = _check(arguments, config)
    if shape is None:
        a, rank = arguments.a, 2 if arguments.masked_m is None else 3
        shape = (*a.shape[: rank - 1], arguments.b.n)
    return arguments.a.new_empty(shape, dtype=arguments.out_dtype or torch.bfloat16)


def _fake_out(out: Tensor, *given: Any) -> None:
    _check(*_arguments(out, *given))


operation = register(
    Operation(schema=f"grouped_gemm_prepared({_ARGUMENTS}) -> Tensor", run=_run, fake=_fake)
)
operation_out = register(
    Operation(
        schema=f"grouped_gemm_prepared.out(Tensor(a!) out, {_ARGUMENTS}) -> ()",
        run=_run_out,
        fake=_fake_out,
    )
)
