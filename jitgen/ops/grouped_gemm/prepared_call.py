# SPDX-License-Identifier: Apache-2.0
"""
`grouped_gemm` with prepared weights: the warm path of its own, and what stands behind it.

As in `jitgen.ops.grouped_gemm.call`, a launch is remembered under a tuple of what the compiled
entry does not check: it sees blocks of weights, and not the N and K that these were made of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes

from jitgen.config import Config
from jitgen.formats.block128 import is_kernel_layout, kernel_layout
from jitgen.formats.prepared import PreparedWeights
from jitgen.formats.protocol import TORCH
from jitgen.frozen import frozen
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.ops.grouped_gemm.dispatch import problem_of, require_bias, require_fit
from jitgen.ops.grouped_gemm.prepared_validate import PreparedArguments, validate
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, nothing, prepared, similar
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current


@frozen
class PreparedLaunch(AnyLaunch):
    """
    What a call with prepared weights needs besides its tensors.

    Attributes:
        copies_scales: Whether kernels cannot read a_scale with the strides that it has.
        front: Dimensions of a that out has, too.
        columns: N of an output that the caller leaves to us.
        out_dtype: Its type.
    """

    copies_scales: bool
    front: int
    columns: int
    out_dtype: torch.dtype

    def run(
        self,
        a: Tensor,
        b: PreparedWeights,
        a_scale: Tensor | None,
        bias: Tensor | None,
        groups: Tensor | None,
        out: Tensor | None,
    ) -> Tensor:
        """
        Launch, and return the result.

        Raises:
            ValueError: Sizes do not fit each other, in the two ways that the entry does not see.
        """
        if a.size(-1) != b.k or (out is not None and out.size(-1) != b.n):
            raise ValueError("a has another K than b, or out another N")
        if out is None:
            shape = (*a.shape[: self.front], self.columns)
            out = a.new_empty(shape, dtype=self.out_dtype)
        if self.copies_scales:
            a_scale = kernel_layout(a_scale)  # type: ignore[arg-type]
        more = () if bias is None else (bias,)
        if a_scale is None:
            self.function(a, b.values, b.factor, *more, groups, out, *self.tail)
        else:
            self.function(a, b.values, a_scale, b.factor, *more, groups, out, *self.tail)
        return out


def from_tuple(given: tuple[Any, ...], config: KernelConfig | Override | None) -> Tensor:
    """Do the same as `grouped_gemm`, with the fields of `PreparedArguments`."""
    return grouped_gemm(PreparedArguments(*given), config)


def grouped_gemm(given: PreparedArguments, config: KernelConfig | Override | None) -> Tensor:
    """
    Do what `jitgen.grouped_gemm` says with prepared weights.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: As there.
    """
    a, b, a_scale, b_scale, offs, m_indices, masked_m, alpha, bias, out, *chosen_by = given
    key: Key = ()
    try:
        groups = offs if masked_m is None else masked_m
        groups = m_indices if groups is None else groups
        values, factor = b.values, b.factor
        key = (
            # Of mistakes, too: those are never remembered.
            (offs is None, m_indices is None, masked_m is None, b_scale is None, alpha is None),
            a.numel(),  # in its place: `launch.ROWS`
            b.kind,
            a.dim(),
            None if a_scale is None else a_scale.dim(),
            a.get_device() if devices.has_several_gpus else None,
            *chosen_by,
            None if config is None else id(config),
            # As in `call`: what has no memory, or needs a gradient, is never remembered.
            a.__class__,
            values.__class__,
            factor.__class__,
            a_scale.__class__,
            bias.__class__,
            groups.__class__,
            out.__class__,
            num_modes(),
            is_grad_enabled()
            and any(x is not None and x.requires_grad for x in (a, a_scale, bias, out, factor)),
        )
        session = current.get()
        launch = session.memo.get(key) or similar(session, key, _rows(given))
        return launch.run(a, b, a_scale, bias, groups, out)  # type: ignore[no-any-return]
    except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
        pass
    return run(given, config, key)


def _rows(given: PreparedArguments) -> Tensor:
    """Return a tensor whose dimension -2 has the rows: of a in two parts that are its scales."""
    a, a_scale = given.a, given.a_scale
    has_parts = a.dim() > (2 if given.masked_m is None else 3)
    return a_scale if has_parts and a_scale is not None else a


def run(given: PreparedArguments, config: KernelConfig | Override | None, key: Key) -> Tensor:
    """
    Do the same with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import prepared_gemm as traced

        return traced.record(given, config)
    with calling("grouped_gemm"):
        session = current.get()
        launch = prepared(session, key, given.a, lambda: _prepare(given, config, session))
        rest = (given.a_scale, given.bias, given.groups, given.out)
        return launch.run(given.a, given.b, *rest)


def _prepare(
    given: PreparedArguments, config: KernelConfig | Override | None, session: Session
) -> tuple[PreparedLaunch, Family, int]:
    """Validate `given`, choose a config unless one is forced, and get a kernel."""
    facts = validate(given, session)
    family = Family()
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = problem_of(facts, given, bias=given.bias is not None)
        wanted, neighbours = chosen(session, problem, facts.arch, "a")
        family = Family.of(problem, facts, given.expected_m)
    else:
        wanted = require_fit(config, facts)
        require_bias(wanted, given.bias)
    function, served = nothing, wanted
    if 0 not in facts.shape:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    scale = given.a_scale
    is_blocked = facts.operands.a_scale_granularity == "block128"
    launch = PreparedLaunch(
        function=function,
        tail=facts.device.tail,
        copies_scales=is_blocked and scale is not None and not is_kernel_layout(scale),
        front=len(facts.shape) - 1,
        columns=facts.n,
        out_dtype=TORCH[facts.operands.out_dtype],
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
    )
    return launch, family, 0 if 0 in facts.shape else facts.rows
