# SPDX-License-Identifier: Apache-2.0
"""``jitgen select``: which config is chosen for a problem, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import click

from jitgen.cli.options import (
    ARCH,
    DEVICE,
    Word,
    problem_of,
    refuse,
    with_fields,
    with_output,
    with_sizes,
)
from jitgen.cli.output import Output
from jitgen.config import Arch, Numerics
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.ops.grouped_gemm.prepacked_algorithms import Algorithms, algorithms
from jitgen.runtime.session import select as choose
from jitgen.selection.choice import Choice
from jitgen.selection.modes import Mode
from jitgen.support import vocabulary as v
from jitgen.support.codec import absent, like, one_of
from jitgen.support.frozen import frozen
from jitgen.targets import devices
from jitgen.targets.devices import default_arch


@frozen
class _Candidate:
    """A candidate kernel, and the prediction of the cost model for it."""

    name: v.Name
    cost_us: v.Microseconds
    time_us: v.Microseconds | None
    padding_ratio: float
    waves: v.Count
    traffic_bytes: v.Bytes
    limiter: str


@frozen
class _Unpacked:
    """The alternative algorithm for prepacked weights, which unpacks them first."""

    is_chosen: bool
    why: str
    kernels: Sequence[v.Name]
    workspace_bytes: v.Bytes


@frozen
class _Selected:
    arch: v.ArchName
    name: v.Name
    config: v.ConfigValues
    source: Annotated[str, one_of("tuned", "shipped", "model", "static", "passes")]
    why: str
    candidates: Sequence[_Candidate]
    excluded: Annotated[Mapping[str, v.Reason], v.by("kernel")]
    unpacked: _Unpacked | None = absent()


@click.command()
@with_sizes(is_required=False)
@with_fields
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@DEVICE
@click.option(
    "--min-latency",
    is_flag=True,
    default=None,
    help="Choose for the least latency of a call with few rows; default: JITGEN_MIN_LATENCY.",
)
@click.option(
    "--numerics",
    type=Word(Numerics),
    help="Guarantee for the bits of a row; default: JITGEN_NUMERICS.",
)
@click.option("--mode", type=Word(Mode), help="Method of choosing; default: JITGEN_SELECT.")
@with_output
def select(
    output: Output,
    /,
    arch: Arch | None,
    device: str | None,
    mode: Mode | None,
    op: str,
    fields: dict[str, str],
    **sizes: object,
) -> None:
    """
    Say which config is chosen for a problem, why, and which other candidates there are.

    COST is the model's prediction. TIME is the measurement of `jitgen tune`, on this machine or in
    the table that jitgen ships; measured times decide. Kernels that failed when they were measured
    are EXCLUDED; with invariant numerics, so are kernels that add up in another order. For
    prepacked weights that may be unpacked first, the times of both algorithms are printed.
    """
    if arch is None:
        arch = default_arch() if device is None else devices.arch_of(device)
    problem = problem_of(op, sizes, fields)
    if not isinstance(problem, GroupedGemmProblem):
        refuse("for grouped_gemm alone; others are chosen by the cost model", "mode")
    choice = choose(problem, arch, device=device, mode=mode)
    other = _other_way(problem, arch, device, mode)
    document = _Selected(
        arch=choice.arch,
        name=choice.config.name(choice.arch),
        config=choice.config.to_json(),
        source=choice.source,
        why=choice.why,
        candidates=[
            like(
                _Candidate,
                each,
                name=each.config.name(choice.arch),
                cost_us=each.cost,
                time_us=choice.times_us.get(each.config),
            )
            for each in choice.candidates
        ],
        excluded={config.name(choice.arch): why for config, why in choice.excluded.items()},
        unpacked=None if other is None else _unpacked(other, arch),
    )
    output.report("select", document, lambda: _print(output, choice, other))


def _unpacked(other: Algorithms, arch: Arch) -> _Unpacked:
    kernels = [config.name(arch) for config in other.kernels]
    return like(_Unpacked, other, is_chosen=other.is_unpacked, kernels=kernels)


def _other_way(
    problem: object, arch: Arch, device: str | None, mode: Mode | None
) -> Algorithms | None:
    """
    Return the costs of both algorithms if prepacked weights may be unpacked first; otherwise None.
    """
    if not isinstance(problem, GroupedGemmProblem):
        return None
    return algorithms(problem, arch, device=device, choose=partial(choose, mode=mode))


def _print(output: Output, choice: Choice, other: Algorithms | None) -> None:
    output.line(choice.config.name(choice.arch), style="bold")
    output.line(choice.why)
    if other is not None:
        output.line()
        for config in other.kernels if other.is_unpacked else ():
            output.line(config.name(choice.arch), style="bold")
        output.line(other.why)
    output.line()
    times = {config: f"{time:.1f}" for config, time in choice.times_us.items()}
    columns = [
        ">COST (us)",
        *([">TIME (us)"] if times else []),
        ">PADDING",
        ">WAVES",
        "LIMITER",
        "CONFIG",
    ]
    rows = [
        (
            f"{candidate.cost:.1f}",
            *([times.get(candidate.config, "")] if times else []),
            f"{candidate.padding_ratio:.2f}x",
            str(candidate.waves),
            candidate.limiter,
            candidate.config.name(choice.arch),
        )
        for candidate in choice.candidates
    ]
    output.table(columns, rows)
    if choice.excluded:
        output.line()
        output.table(
            ["EXCLUDED", "~REASON"],
            [(config.name(choice.arch), why) for config, why in choice.excluded.items()],
        )
