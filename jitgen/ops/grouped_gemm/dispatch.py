# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen import formats
from jitgen.config import Layout
from jitgen.errors import InputError, UnsupportedConfig
from jitgen.formats.protocol import TORCH, ScaleFormat
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.grouped_gemm.config import KernelConfig, Operands
from jitgen.ops.grouped_gemm.launch import Family, Key, Launch, remember
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.ops.grouped_gemm.validate import Arguments, Facts, validate
from jitgen.runtime.session import Session, current
from jitgen.targets.legality import require
from jitgen.tuning.choice import Choice, edges_of


def run(given: Arguments, config: KernelConfig | None, key: Key) -> Tensor:
    """
    Do what `grouped_gemm` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import grouped_gemm as traced

        return traced.record(given, config)
    with calling("grouped_gemm"):
        return _run(given, config, key, current.get())


def _run(given: Arguments, config: KernelConfig | None, key: Key, session: Session) -> Tensor:
    epoch = session.epoch
    launch, family, rows = _prepare(given, config, session)
    # While a graph is captured nobody looks for what is awaited, and scales may be the graph's own:
    # the next call prepares again.
    is_capturing = given.a.is_cuda and torch.cuda.is_current_stream_capturing()
    is_waiting = is_capturing and (launch.awaited is not None or launch.unit_scales)
    # Nor is one remembered that a dispatch mode was told not to see: the next it is to see.
    if not (is_waiting or torch._C._len_torch_dispatch_stack()):
        remember(session, key, family, rows, launch)
        if launch.awaited is not None and epoch is not session.epoch:
            session.memo.pop(key, None)  # it may have arrived after we looked, before we remembered
    out = launch.new_out(given.a) if given.out is None else given.out
    a_scale = given.a_scale
    if a_scale is not None:
        a_scale = _form(launch.config).readable(a_scale)
    scales = launch.unit_scales or (a_scale, given.b_scale)
    launch.function(given.a, given.b, *scales, given.groups, out, *launch.tail)
    return out


def _family(facts: Facts, expected_m: int | None, config: KernelConfig | None) -> Family:
    """Return the calls that differ from this one in their rows only."""
    if config is not None:
        return Family(edges=(0,))  # whatever the rows, it serves
    groups = 1 if facts.layout is Layout.MASKED else facts.groups
    edges = edges_of(_problem(facts, None), facts.arch)
    return Family(edges=edges, groups=groups, mean=expected_m or 0)


def _prepare(
    given: Arguments, config: KernelConfig | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its rows; 0 where there is nothing to launch.
    """
    facts = validate(given, session)
    choice = None
    if config is None:
        choice = _choice(facts, given.expected_m, session)
        wanted = choice.config
    else:
        require_fit(config, facts)
        wanted = config
    device, a_scale = given.a.device, given.a_scale
    function, served = _nothing, wanted
    if 0 not in facts.shape:
        # One that was forced, and so is no choice, is never replaced.
        others = choice.candidates if choice is not None else ()
        neighbours = [other.config for other in others if other.config != wanted]
        function, served = facts.device.entry(session, wanted, neighbours)
    launch = Launch(
        function=function,
        tail=facts.device.tail,
        copies_scales=a_scale is not None and not _form(served).is_readable(a_scale),
        unit_scales=_unit_scales(device, facts.groups, session) if given.b_scale is None else (),
        columns=facts.n,
        out_dtype=TORCH[facts.out_dtype],
        config=served,
        awaited=None if served == wanted else wanted,
    )
    family = _family(facts, given.expected_m, config)
    return launch, family, 0 if 0 in facts.shape else facts.rows


def _problem(facts: Facts, expected_m: int | None) -> Problem:
    """Return what is chosen for; unless told, groups share the rows and masked ones are full."""
    rows = facts.rows * facts.groups if facts.layout is Layout.MASKED else facts.rows
    return Problem(
        layout=facts.layout,
        groups=facts.groups,
        m=rows if expected_m is None else expected_m * facts.groups,
        n=facts.n,
        k=facts.k,
        a_dtype=facts.a_dtype,
        out_dtype=facts.out_dtype,
        scale_granularity=facts.scale_granularity,
    )


def _choice(facts: Facts, expected_m: int | None, session: Session) -> Choice:
    try:
        return session.select(_problem(facts, expected_m), facts.arch)
    except UnsupportedConfig as error:
        raise InputError("a", str(error)) from None


def require_config(config: object) -> None:
    """
    Do nothing if `config` is one.

    Raises:
        InputError: It is not.
    """
    if not isinstance(config, KernelConfig):
        raise InputError("config", f"must be a KernelConfig (got {type(config).__name__})")


def require_fit(config: KernelConfig, facts: Facts) -> None:
    """
    Do nothing if `config` is legal and made for tensors like these.

    Raises:
        InputError: It is no config, or one for other tensors.
        UnsupportedConfig: The target cannot run it.
    """
    require_config(config)
    operands = Operands(
        a_dtype=facts.a_dtype,
        b_dtype=facts.a_dtype,
        out_dtype=facts.out_dtype,
        scale_granularity=facts.scale_granularity,
    )
    if config.layout is not facts.layout or config.operands != operands:
        raise InputError(
            "config",
            f"must be for {facts.layout}, {_words(operands)}, as the tensors are "
            f"(got one for {config.layout}, {_words(config.operands)})",
        )
    require(config, facts.arch)


def _form(config: Any) -> ScaleFormat:
    """Return the format of a's scales."""
    types = config.operands
    return formats.find(types.a_scale_granularity or types.scale_granularity)


def _words(operands: Operands) -> str:
    return (
        f"{operands.a_dtype} x {operands.b_dtype} -> {operands.out_dtype} "
        f"with {operands.scale_granularity} scales"
    )


def _nothing(*_: Any) -> None:
    """Launch nothing: there are no rows."""


def _unit_scales(device: torch.device, groups: int, session: Session) -> tuple[Tensor, Tensor]:
    """Return scales of one: the same ones for every call, but for a call that a graph captures."""
    place = (device, groups)
    if place not in session.unit_scales:
        scales = torch.ones(1, device=device), torch.ones(groups, device=device)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return scales  # nothing but a replay of that graph fills them
            torch.cuda.current_stream(device).synchronize()  # other streams read them, too
        session.unit_scales[place] = scales
    kept: tuple[Tensor, Tensor] = session.unit_scales[place]
    return kept
