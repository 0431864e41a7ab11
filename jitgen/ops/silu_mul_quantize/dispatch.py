# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen import formats
from jitgen.config import Layout, ScaleGranularity
from jitgen.errors import InputError, UnsupportedConfig
from jitgen.formats.protocol import TORCH
from jitgen.frozen import frozen
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.grouped_gemm.launch import AnyLaunch, Family, Key, remember
from jitgen.ops.silu_mul_quantize.config import Scales, SiluMulQuantizeConfig
from jitgen.ops.silu_mul_quantize.problem import SiluMulQuantizeProblem
from jitgen.ops.silu_mul_quantize.validate import Arguments, Facts, validate
from jitgen.runtime.session import Session, current
from jitgen.targets.legality import require
from jitgen.tuning.choice import edges_of

Result = tuple[Tensor, Tensor | None]


@frozen
class Launch(AnyLaunch):
    """
    What a call needs besides its tensors.

    Attributes:
        scales: How many results share one scale.
        columns: I.
    """

    scales: Scales
    columns: int

    def call(self, given: Arguments) -> Result:
        """Launch the kernel for `given`, which is valid; return q and scale."""
        q = new_q(given.x, self.columns, self.scales) if given.out is None else given.out
        scale = new_scale(given.x, self.columns, self.scales)
        if scale is None:
            scale = given.scale
        found = () if scale is None else (scale,)
        self.function(given.x, given.groups, q, *found, *given.limits, *self.tail)
        return q, scale


def new_q(x: Tensor, columns: int, scales: Scales) -> Tensor:
    """Return results for the rows of `x`, not initialised."""
    return x.new_empty((*x.shape[:-1], columns), dtype=TORCH[scales.q_dtype])


def new_scale(x: Tensor, columns: int, scales: Scales) -> Tensor | None:
    """
    Return scales of the results as the next GEMM reads them, not initialised; None where a kernel
    finds none.
    """
    if not scales.is_found:
        return None
    form = formats.find(ScaleGranularity(str(scales)))
    return form.new_a(x, tuple(x.shape[:-1]), columns)


def run(given: Arguments, config: SiluMulQuantizeConfig | None, key: Key) -> Result:
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
    given: Arguments, config: SiluMulQuantizeConfig | None, key: Key, session: Session
) -> Result:
    epoch = session.epoch
    launch, family, rows = _prepare(given, config, session)
    is_capturing = given.x.is_cuda and torch.cuda.is_current_stream_capturing()
    # While a graph is captured nobody looks for what is awaited, and a dispatch mode that was told
    # not to see this call is to see the next.
    is_waiting = is_capturing and launch.awaited is not None
    if not (is_waiting or torch._C._len_torch_dispatch_stack()):
        remember(session, key, family, rows, launch)
        if launch.awaited is not None and epoch is not session.epoch:
            session.memo.pop(key, None)  # it may have arrived after we looked, before we remembered
    return launch.call(given)


def _prepare(
    given: Arguments, config: SiluMulQuantizeConfig | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its rows; 0 where there is nothing to launch.
    """
    facts = validate(given, session)
    problem = problem_of(given, facts)
    neighbours: list[Any] = []
    if config is None:
        try:
            choice = session.select(problem, facts.arch)
        except UnsupportedConfig as error:
            raise InputError("x", str(error)) from None
        wanted = choice.config
        neighbours = [each.config for each in choice.candidates if each.config != wanted]
        groups = 1 if facts.layout is Layout.MASKED else facts.groups
        edges = edges_of(problem, facts.arch)
        family = Family(edges=edges, groups=groups, mean=given.expected_m or 0)
    else:
        require_fit(config, given, facts)
        wanted, family = config, Family(edges=(0,))
    function, served = _nothing, wanted
    if facts.rows:
        # One that was forced, and so is no choice, is never replaced.
        function, served = facts.device.entry(session, wanted, neighbours)
    launch = Launch(
        function=function,
        tail=facts.device.tail,
        config=served,
        awaited=None if served == wanted else wanted,
        scales=facts.scale_granularity,
        columns=facts.n,
    )
    return launch, family, facts.rows


def problem_of(given: Arguments, facts: Facts) -> SiluMulQuantizeProblem:
    """Return what is chosen for; unless told, groups share the rows and masked ones are full."""
    rows = facts.rows * facts.groups if facts.layout is Layout.MASKED else facts.rows
    if given.expected_m is not None and facts.layout is not Layout.CONTIGUOUS:
        rows = given.expected_m * facts.groups
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


def require_config(config: object) -> None:
    """
    Do nothing if `config` is one.

    Raises:
        InputError: It is not.
    """
    if not isinstance(config, SiluMulQuantizeConfig):
        raise InputError("config", f"must be a SiluMulQuantizeConfig (got {type(config).__name__})")


def require_fit(config: SiluMulQuantizeConfig, given: Arguments, facts: Facts) -> None:
    """
    Do nothing if `config` is legal and made for a call like this.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    require_config(config)
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


def _nothing(*_: Any) -> None:
    """Launch nothing: there are no rows."""
