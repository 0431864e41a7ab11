# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Config, Layout
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.permute_quantize import (
    Format,
    PermuteQuantizeConfig,
    PermuteQuantizeProblem,
    Walk,
)
from jitgen.errors import InputError
from jitgen.formats import find_format
from jitgen.formats.protocol import TORCH, Rows, ScaleFormat
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, nothing, prepared
from jitgen.ops.permute_quantize.validate import Arguments, Facts, validate
from jitgen.ops.values import check_places, check_values
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

Result = tuple[Tensor, Tensor | None]

_PAIRS = torch.float4_e2m1fn_x2
_WORD = 4
"""Scales that a kernel loads together."""


@frozen
class Launch(AnyLaunch):
    """
    What a call needs besides its tensors.

    Attributes:
        per_element: Values in an element of q.
        q_dtype: Element type of q as kernels take it.
        form: The format of the scales that the kernel finds; None where it finds none.
        num_groups: Groups whose rows follow each other, where scales lie in atoms; else 0.
        is_scatter: Whether the kernel asks the inverse, and not the permutation.
        is_relayed: Whether it asks both, and needs memory for the scales of tokens.
    """

    per_element: int
    q_dtype: torch.dtype
    form: ScaleFormat | None
    num_groups: int
    is_scatter: bool
    is_relayed: bool

    def call(  # the tensors
        self,
        x: Tensor,
        permutation: Tensor,
        top_k: int,
        groups: Tensor | None,
        inverse: Tensor | None,
        scale: Tensor | None,
        out: Tensor | None,
    ) -> Result:
        """Launch the kernel, into `out` if it is given; return q and its scales."""
        rows, columns = permutation.shape, x.shape[-1]
        q = out
        if q is None:
            q = x.new_empty((*rows, columns // self.per_element), dtype=self.q_dtype)
        written = q.view(torch.uint8) if q.dtype is _PAIRS else q
        given: list[Tensor | int | None] = [x, inverse, written]
        if not self.is_scatter:
            given = [x, permutation, groups, written]
        if self.form is not None:
            found = self.form.new_a(x, Rows(tuple(rows), self.num_groups), columns)
            given.append(found)
            if scale is not None:
                given.append(scale)
            scale = found
        elif scale is not None:
            given.append(scale)
        if not self.is_scatter:
            given.append(top_k)
        elif self.is_relayed:
            given += (permutation, new_by_token(x))
        self.function(*given, *self.tail)
        return q, scale


def new_q(given: Arguments, form: Format) -> Tensor:
    """Return results, not initialised."""
    columns = given.x.shape[-1] // form.q_dtype.values_per_element
    return given.x.new_empty((*given.permutation.shape, columns), dtype=stored_as(form))


def new_scale(given: Arguments, form: Format, num_groups: int) -> Tensor | None:
    """
    Return scales of the results as the next GEMM reads them, not initialised; None where a kernel
    finds none.
    """
    kind, groups = form_of(form), counted(form, given.offs, num_groups)
    if kind is None:
        return None
    return kind.new_a(given.x, Rows(tuple(given.permutation.shape), groups), given.x.shape[-1])


def new_by_token(x: Tensor) -> Tensor:
    """Return room for the scales of every token's blocks, not initialised: rows of 16 bytes."""
    blocks = -(-x.shape[-1] // SCALE_BLOCK)
    return x.new_empty((x.shape[0], -(-blocks // _WORD) * _WORD), dtype=torch.float32)


def stored_as(form: Format) -> torch.dtype:
    """Return the element type of new results: two values of e2m1 are a byte."""
    return torch.uint8 if TORCH[form.q_dtype] is _PAIRS else TORCH[form.q_dtype]


def form_of(form: Format) -> ScaleFormat | None:
    """Return the format of scales that a kernel finds, which is that of a GEMM's a."""
    return find_format(form.scales) if form.has_own_scales else None


def counted(form: Format, offs: Tensor | None, num_groups: int) -> int:
    """Return the groups from whose starts atoms count ragged rows; 0 for others."""
    return num_groups if form.has_atoms and offs is not None else 0


def run(given: Arguments, config: PermuteQuantizeConfig | Override | None, key: Key) -> Result:
    """
    Do what `permute_quantize` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import permute_quantize as traced

        return traced.record(given, config)
    with calling("permute_quantize"):
        session = current.get()
        launch = prepared(
            session, key, given.tensors, lambda: _prepare(given, config, session), written=("out",)
        )
        return launch.call(
            *(given.x, given.permutation, given.top_k, given.groups),
            *(given.inverse, given.scale, given.out),
        )


def _prepare(
    given: Arguments, config: PermuteQuantizeConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its tokens; 0 where there is nothing to
        launch.
    """
    facts = validate(given, session)
    check_taken(given, facts)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = problem_of(given, facts)
        wanted, neighbours = chosen(session, problem, facts.arch, "x")
        family = Family.of(problem, facts, None)
    else:  # whatever the tokens, it serves, and is never replaced
        wanted = require_fit(config, given, facts)
    function, served = nothing, wanted
    if facts.rows and given.permutation.numel():
        function, served = facts.device.entry(session, config or wanted, neighbours)
    form = facts.format
    launch = Launch(
        function=function,
        tail=facts.device.tail,
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        per_element=form.q_dtype.values_per_element,
        q_dtype=stored_as(form),
        form=form_of(form),
        num_groups=counted(form, given.offs, facts.num_groups),
        is_scatter=served.walk is Walk.SCATTER,  # type: ignore[attr-defined]
        is_relayed=served.tiling.is_relayed,  # type: ignore[attr-defined]
    )
    return launch, family, facts.rows


def problem_of(given: Arguments, facts: Facts) -> PermuteQuantizeProblem:
    """Return what is chosen for."""
    return PermuteQuantizeProblem(
        layout=facts.layout,
        m=facts.rows,
        k=facts.k,
        top_k=given.top_k,
        format=facts.format,
        walk=facts.walk,
        power_of_two=given.power_of_two,
        rounding=facts.rounding,
    )


def require_fit(asked: object, given: Arguments, facts: Facts) -> PermuteQuantizeConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for a call like this;
    one that gathers serves any.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    config: PermuteQuantizeConfig = forced(asked, PermuteQuantizeConfig, facts.arch)
    walk = Walk.GATHER if config.walk is Walk.GATHER else facts.walk
    wanted = PermuteQuantizeConfig(
        layout=facts.layout,
        format=facts.format,
        walk=walk,
        power_of_two=given.power_of_two,
        rounding=facts.rounding,
        tiling=config.tiling,
    )
    if config != wanted:
        raise InputError(
            "config",
            f"must be for what is asked, {wanted.words()} (got one for {config.words()})",
        )
    require(config, facts.arch)
    return config


def check_taken(given: Arguments, facts: Facts) -> None:
    """Look at what kernels take on trust, where JITGEN_CHECK is on."""
    rows = given.permutation.shape[-1]
    check_values(facts.layout, given.groups, rows, start=1)
    owners = None if facts.layout is Layout.CONTIGUOUS else given.groups
    pairs = facts.rows * given.top_k
    check_places("permutation", given.permutation, pairs, "pairs", owners=owners)
    check_places("inverse", given.inverse, rows, "rows")
