# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Config, Layout, ScaleGranularity
from jitgen.config.silu_mul_quantize import Scales, SiluMulQuantizeConfig, SiluMulQuantizeProblem
from jitgen.errors import InputError
from jitgen.formats import find_format
from jitgen.formats.protocol import TORCH, Rows, ScaleFormat
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, nothing, prepared
from jitgen.ops.silu_mul_quantize.validate import Arguments, Facts, validate
from jitgen.ops.values import check_values
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

Result = tuple[Tensor, Tensor | None]


@frozen
class Launch(AnyLaunch):
    """
    What a call needs besides its tensors.

    Attributes:
        columns: I.
        q_dtype: Element type of the results.
        form: The format of the scales that the kernel finds; None where it finds none.
    """

    columns: int
    q_dtype: torch.dtype
    form: ScaleFormat | None

    def call(
        self, x: Tensor, groups: Tensor | None, scale: Tensor | None, q: Tensor | None
    ) -> Result:
        """Launch the kernel, into `q` if it is given; return q and its scales."""
        rows = x.shape[:-1]
        if q is None:
            q = x.new_empty((*rows, self.columns), dtype=self.q_dtype)
        if self.form is not None:
            scale = self.form.new_a(x, Rows(rows), self.columns)
        if scale is None:
            self.function(x, groups, q, *self.tail)
        else:
            self.function(x, groups, q, scale, *self.tail)
        return q, scale


def new_q(x: Tensor, columns: int, scales: Scales) -> Tensor:
    """Return results for the rows of `x`, not initialised."""
    return x.new_empty((*x.shape[:-1], columns), dtype=TORCH[scales.q_dtype])


def new_scale(x: Tensor, columns: int, scales: Scales) -> Tensor | None:
    """
    Return scales of the results as the next GEMM reads them, not initialised; None where a kernel
    finds none.
    """
    form = _form(scales)
    return None if form is None else form.new_a(x, Rows(x.shape[:-1]), columns)


def _form(scales: Scales) -> ScaleFormat | None:
    """Return the format of scales that a kernel finds, which is that of a GEMM's a."""
    return find_format(ScaleGranularity(str(scales))) if scales.is_found else None


def run(given: Arguments, config: SiluMulQuantizeConfig | Override | None, key: Key) -> Result:
    """
    Do what `silu_mul_quantize` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import silu_mul_quantize as traced

        return traced.record(given, config)
    with calling("silu_mul_quantize"):
        return _run(given, config, key, current.get())


def _run(
    given: Arguments, config: SiluMulQuantizeConfig | Override | None, key: Key, session: Session
) -> Result:
    launch = prepared(
        session, key, given.tensors, lambda: _prepare(given, config, session), written=("out",)
    )
    return launch.call(given.x, given.groups, given.scale, given.out)


def _prepare(
    given: Arguments, config: SiluMulQuantizeConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its rows; 0 where there is nothing to launch.
    """
    facts = validate(given, session)
    check_values(facts.layout, given.groups, facts.rows, start=1)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = problem_of(given, facts)
        wanted, neighbours = chosen(session, problem, facts.arch, "x")
        family = Family.of(problem, facts, _mean(given, facts))
    else:  # whatever the rows, it serves, and is never replaced
        wanted = require_fit(config, given, facts)
    function, served = nothing, wanted
    if facts.rows:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    scales = facts.scale_granularity
    launch = Launch(
        function=function,
        tail=(*given.limits, *facts.device.tail),
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        columns=facts.n,
        q_dtype=TORCH[scales.q_dtype],
        form=_form(scales),
    )
    return launch, family, facts.rows


def _mean(given: Arguments, facts: Facts) -> int | None:
    """Return the rows that a group is told to have; contiguous calls do not know their groups."""
    return None if facts.layout is Layout.CONTIGUOUS else given.expected_m


def problem_of(given: Arguments, facts: Facts) -> SiluMulQuantizeProblem:
    """Return what is chosen for; unless told, groups share the rows and masked ones are full."""
    rows = facts.rows * facts.groups if facts.layout is Layout.MASKED else facts.rows
    if (mean := _mean(given, facts)) is not None:
        rows = mean * facts.groups
    return SiluMulQuantizeProblem(
        layout=facts.layout,
        groups=facts.groups,
        m=rows,
        n=facts.n,
        scale_granularity=facts.scale_granularity,
        activation=facts.activation,
        interleaved=given.interleaved,
        power_of_two=given.power_of_two,
    )


def require_fit(asked: object, given: Arguments, facts: Facts) -> SiluMulQuantizeConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for a call like this.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    config: SiluMulQuantizeConfig = forced(asked, SiluMulQuantizeConfig, facts.arch)
    wanted = SiluMulQuantizeConfig(
        layout=facts.layout,
        scale_granularity=facts.scale_granularity,
        activation=facts.activation,
        interleaved=given.interleaved,
        power_of_two=given.power_of_two,
        tiling=config.tiling,
    )
    if config != wanted:
        raise InputError(
            "config",
            f"must be for what is asked, {wanted.words()} (got one for {config.words()})",
        )
    require(config, facts.arch)
    return config
