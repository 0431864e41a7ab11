# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.moe_fc2_dense import MoeFc2DenseConfig, MoeFc2DenseProblem
from jitgen.errors import InputError
from jitgen.formats import atoms, find_format
from jitgen.formats.block128 import is_kernel_layout, kernel_layout
from jitgen.formats.protocol import TORCH, ScaleFormat
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, nothing, prepared
from jitgen.ops.moe_fc2_dense.validate import Arguments, Facts, validate
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import edges_of
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


@frozen
class Launch(AnyLaunch):
    """
    What a call of `moe_fc2_dense` needs besides its tensors.

    Attributes:
        form: The format of the scales.
        copies: Whether kernels cannot read a_scale or alpha with the strides that they have.
        columns: N of an output that the caller leaves to us.
        out_dtype: Its type.
    """

    form: ScaleFormat
    copies: bool
    columns: int
    out_dtype: torch.dtype

    def call(  # the tensors
        self, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, alpha: Tensor, out: Any
    ) -> Tensor:
        """
        Launch the kernel, into `out` if it is given; return the result.

        Raises:
            ValueError: There are not enough atoms for the tokens, which the entry does not see.
        """
        if self.form.has_atoms:
            if a_scale.shape[-3] * atoms.ROWS < alpha.shape[0]:
                raise ValueError("a_scale is too small")
            if a.dtype is _PAIRS:
                a = a.view(torch.uint8)
            if b.dtype is _PAIRS:
                b = b.view(torch.uint8)
        result: Tensor = out
        if out is None:
            result = a.new_empty((a.shape[0], self.columns), dtype=self.out_dtype)
        if self.copies:
            a_scale, alpha = self.form.readable(a_scale), kernel_layout(alpha)
        self.function(a, b, a_scale, b_scale, alpha, result, *self.tail)
        return result


_PAIRS = torch.float4_e2m1fn_x2
"""What kernels take as bytes."""


def run(given: Arguments, config: MoeFc2DenseConfig | Override | None, key: Key) -> Tensor:
    """
    Do what `moe_fc2_dense` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import moe_fc2_dense as traced

        return traced.record(given, config)
    with calling("moe_fc2_dense"):
        session = current.get()
        launch = prepared(
            session, key, given.tensors, lambda: _prepare(given, config, session), written=("out",)
        )
        return launch.call(given.a, given.b, given.a_scale, given.b_scale, given.alpha, given.out)


def _prepare(
    given: Arguments, config: MoeFc2DenseConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its tokens; 0 where there is nothing to
        launch.
    """
    facts = validate(given, session)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = problem_of(facts)
        wanted, neighbours = chosen(session, problem, facts.arch, "a")
        family = Family(edges=edges_of(problem, facts.arch), arch=facts.arch, problem=problem)
    else:  # whatever the tokens, it serves, and is never replaced
        wanted = require_fit(config, facts)
    function, served = nothing, wanted
    if facts.rows:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    form = find_format(facts.scale_granularity)
    launch = Launch(
        function=function,
        tail=facts.device.tail,
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        form=form,
        copies=not (form.is_readable(given.a_scale) and is_kernel_layout(given.alpha)),
        columns=facts.n,
        out_dtype=TORCH[facts.out_dtype],
    )
    return launch, family, facts.rows


def problem_of(facts: Facts) -> MoeFc2DenseProblem:
    """Return what is chosen for; how many experts a token has, no call says."""
    return MoeFc2DenseProblem(
        groups=facts.groups,
        m=facts.rows,
        n=facts.n,
        k=facts.k,
        a_dtype=facts.a_dtype,
        out_dtype=facts.out_dtype,
        scale_granularity=facts.scale_granularity,
    )


def require_fit(asked: object, facts: Facts) -> MoeFc2DenseConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for tensors like these.

    Raises:
        InputError: It is no config, or one for other tensors.
        UnsupportedConfig: The target cannot run it.
    """
    config: MoeFc2DenseConfig = forced(asked, MoeFc2DenseConfig, facts.arch)
    if config.operands != facts.operands:
        have, wanted = config.operands.to_json(), facts.operands.to_json()
        raise InputError(
            "config",
            "must be for what the tensors are, "
            + ", ".join(f"{name} {wanted[name]}" for name in wanted if wanted[name] != have[name])
            + f" (got one for {config.words()})",
        )
    require(config, facts.arch)
    return config
