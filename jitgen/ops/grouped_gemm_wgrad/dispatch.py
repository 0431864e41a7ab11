# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Config, Layout
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.errors import InputError
from jitgen.formats.protocol import TORCH
from jitgen.ops.calling import calling, is_traced, needs_gradient
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.ops.forced import forced
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments, Facts, validate
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, prepared
from jitgen.ops.values import check_values
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


@frozen
class Launch(AnyLaunch):
    """
    What a call of `grouped_gemm_wgrad` needs besides its tensors.

    Attributes:
        columns: N and K of an output that the caller leaves to us.
        out_dtype: Its type.
    """

    columns: tuple[int, int]
    out_dtype: torch.dtype

    def call(self, dy: Tensor, a: Tensor, groups: Any, out: Any) -> Tensor:
        """Launch the kernel, into `out` if it is given; return the result."""
        result: Tensor = out
        if out is None:
            result = a.new_empty((groups.shape[0], *self.columns), dtype=self.out_dtype)
        self.function(dy, a, groups, result, *self.tail)
        return result


def _zeros(_dy: Tensor, _a: Tensor, _groups: Tensor, out: Tensor, *_: Any) -> None:
    """Stand for a kernel where there is no row at all: of nothing the TMA unit knows no map."""
    out.zero_()


def run(given: Arguments, config: GroupedGemmWgradConfig | Override | None, key: Key) -> Tensor:
    """
    Do what `grouped_gemm_wgrad` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered;
    so does one that autograd asks a gradient of.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import grouped_gemm_wgrad as traced

        return traced.record(given, config)
    refuse_tangents(given.tensors)
    if needs_gradient(given.tensors.values()):
        from jitgen.ops.tracing import grouped_gemm_wgrad as traced

        return traced.differentiable(given, config)
    with calling("grouped_gemm_wgrad"):
        session = current.get()
        launch = prepared(
            session, key, given.tensors, lambda: _prepare(given, config, session), written=("out",)
        )
        return launch.call(given.dy, given.a, given.groups, given.out)


def _prepare(
    given: Arguments, config: GroupedGemmWgradConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its rows; 0 where there are none.
    """
    facts = validate(given, session)
    check_values(facts.layout, given.groups, facts.rows)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = problem_of(given, facts)
        wanted, neighbours = chosen(session, problem, facts.arch, "dy")
        family = Family.of(problem, facts, given.expected_m)
    else:  # whatever the rows, it serves, and is never replaced
        wanted = require_fit(config, facts)
    function, served = _zeros, wanted
    if facts.rows:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    launch = Launch(
        function=function,
        tail=facts.device.tail,
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        columns=(facts.n, facts.k),
        out_dtype=TORCH[facts.out_dtype],
    )
    return launch, family, facts.rows


def problem_of(given: Arguments, facts: Facts) -> GroupedGemmWgradProblem:
    """Return what is chosen for; unless told, groups share the rows and masked ones are full."""
    rows = facts.rows * facts.groups if facts.layout is Layout.MASKED else facts.rows
    if given.expected_m is not None:
        rows = given.expected_m * facts.groups
    return GroupedGemmWgradProblem(
        layout=facts.layout,
        groups=facts.groups,
        m=rows,
        n=facts.n,
        k=facts.k,
        a_dtype=facts.a_dtype,
        out_dtype=facts.out_dtype,
    )


def require_fit(asked: object, facts: Facts) -> GroupedGemmWgradConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for tensors like these.

    Raises:
        InputError: It is no config, or one for other tensors.
        UnsupportedConfig: The target cannot run it.
    """
    config: GroupedGemmWgradConfig = forced(asked, GroupedGemmWgradConfig, facts.arch)
    names = ("layout", "a_dtype", "out_dtype")
    if wrong := [name for name in names if getattr(config, name) != getattr(facts, name)]:
        raise InputError(
            "config",
            "must be for what the tensors are, "
            + ", ".join(f"{name} {getattr(facts, name)}" for name in wrong)
            + f" (got one for {config.words()})",
        )
    require(config, facts.arch)
    return config
