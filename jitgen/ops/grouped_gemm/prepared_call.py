# SPDX-License-Identifier: Apache-2.0
"""
`grouped_gemm` with prepared weights: the warm path of its own, and what stands behind it.

As in `jitgen.ops.grouped_gemm.call`, a launch is remembered under a tuple of what the compiled
entry does not check: it sees blocks of weights, and not the N and K that these were made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad

from jitgen.config import Config
from jitgen.config.grouped_gemm import KernelConfig
from jitgen.errors import CaptureMiss, KernelMiss
from jitgen.events import warn_once
from jitgen.formats.block128 import is_kernel_layout, kernel_layout
from jitgen.formats.prepared import PreparedWeights
from jitgen.formats.protocol import TORCH
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.grouped_gemm.dispatch import problem_of, require_bias, require_fit
from jitgen.ops.grouped_gemm.prepared_validate import PreparedArguments, validate
from jitgen.ops.grouped_gemm.prepared_ways import Ways, ways
from jitgen.ops.grouped_gemm.validate import Facts
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, nothing, prepared, present, similar
from jitgen.ops.values import check_values
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import Choice
from jitgen.support.frozen import frozen


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


@frozen
class UnpackedLaunch(AnyLaunch):
    """
    What a call needs that unpacks the weights first; `function` multiplies them.

    Attributes:
        unpack: The compiled entry that unpacks weights.
        unpack_config: Its config.
        front: As of `PreparedLaunch`, as are the others.
        columns: See there.
        out_dtype: See there.
    """

    unpack: Callable[..., Any]
    unpack_config: Config
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
        Launch both kernels, and return the result.

        Unpacked weights are memory of torch's allocator, which a later use of the same stream may
        have as soon as this returns.

        """
        if out is None:
            shape = (*a.shape[: self.front], self.columns)
            out = a.new_empty(shape, dtype=self.out_dtype)
        values = b.values.new_empty((b.groups, b.n, b.k), dtype=torch.float8_e4m3fn)
        scale = b.factor.new_empty((b.groups, b.n))
        self.unpack(b.values, b.factor, values, scale, *self.tail)
        more = () if bias is None else (bias,)
        self.function(a, values, a_scale, scale, *more, groups, out, *self.tail)
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
            bias is None,
            out is None,
            *chosen_by,
            None if config is None else id(config),
            num_modes(),
            is_grad_enabled(),
            forward_ad._current_level,
        )
        session = current.get()
        for launch in session.memo.get(key) or similar(session, key, _rows(given)):
            if launch.fits(*present(a, values, a_scale, groups, bias, out, factor)):
                if out is not None:
                    mark_written((out,))
                return launch.run(  # type: ignore[no-any-return]
                    a, b, a_scale, bias, groups, out
                )
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
        launch = prepared(
            session, key, given.tensors, lambda: _prepare(given, config, session), written=("out",)
        )
        rest = (given.a_scale, given.bias, given.groups, given.out)
        return launch.run(given.a, given.b, *rest)


def _prepare(
    given: PreparedArguments, config: KernelConfig | Override | None, session: Session
) -> tuple[PreparedLaunch | UnpackedLaunch, Family, int]:
    """Validate `given`, choose a config unless one is forced, and get a kernel, or two."""
    facts = validate(given, session)
    check_values(facts.layout, given.groups, facts.rows, groups=facts.groups)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    rows = 0 if 0 in facts.shape else facts.rows
    if config is None:
        problem = problem_of(facts, given, bias=given.bias is not None)
        wanted, neighbours = chosen(session, problem, facts.arch, "a")
        family = Family.of(problem, facts, given.expected_m)
        if rows and given.b.has_near_rows:
            found = ways(problem, facts.arch, choose=session.select)
            if found is not None and found.is_unpacked:
                return _unpacked(facts, found, session), family, rows
    else:
        wanted = require_fit(config, facts, given.numerics)
        require_bias(wanted, given.bias)
    function, served = nothing, wanted
    if rows:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    scale = given.a_scale
    is_blocked = facts.operands.a_scale_granularity == "block128"
    copies_scales = is_blocked and scale is not None and not is_kernel_layout(scale)
    launch = _prepared(facts, function, served, wanted, copies_scales=copies_scales, forced=config)
    return launch, family, rows


def _prepared(
    facts: Facts,
    function: Callable[..., Any],
    served: Config,
    wanted: Config,
    *,
    copies_scales: bool,
    forced: KernelConfig | Override | None = None,
) -> PreparedLaunch:
    """Return a launch of a kernel for prepared weights."""
    return PreparedLaunch(
        function=function,
        tail=facts.device.tail,
        copies_scales=copies_scales,
        front=len(facts.shape) - 1,
        columns=facts.n,
        out_dtype=TORCH[facts.operands.out_dtype],
        config=served,
        forced=forced,
        awaited=None if served == wanted else wanted,
    )


def _unpacked(facts: Facts, found: Ways, session: Session) -> PreparedLaunch | UnpackedLaunch:
    """
    Return a launch of two kernels.

    Where one of them is not compiled, it is one of the kernel for prepared weights, which computes
    the same: until it is, with JITGEN_ON_MISS=fallback, else for good.
    """
    device, prepared_configs = facts.device, _in_order(found.prepared)
    entries: list[Callable[..., Any]] = []
    configs: list[Config] = []
    for choice in (found.unpack, found.gemm):
        wanted, *others = _in_order(choice)
        try:
            function, served = device.entry(session, wanted, (*others, *prepared_configs))
        except CaptureMiss:
            raise
        except KernelMiss as miss:
            session.note_miss(miss)  # one that passes must not be remembered for good
            warn_once(f"unpacked {miss.kernel}", "weights are not unpacked first: %s", miss)
            wanted, *others = prepared_configs
            function, served = device.entry(session, wanted, others)
        if served in prepared_configs:
            return _prepared(facts, function, served, wanted, copies_scales=False)
        entries.append(function)
        configs.append(served)
    awaited = (each for each, served in zip(found.kernels, configs, strict=True) if each != served)
    return UnpackedLaunch(
        unpack=entries[0],
        unpack_config=configs[0],
        function=entries[1],
        tail=device.tail,
        front=len(facts.shape) - 1,
        columns=facts.n,
        out_dtype=TORCH[facts.operands.out_dtype],
        config=configs[1],
        awaited=next(awaited, None),
    )


def _in_order(choice: Choice) -> list[Config]:
    """Return the candidates of a choice, best first."""
    return [candidate.config for candidate in choice.candidates]
