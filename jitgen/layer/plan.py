# SPDX-License-Identifier: Apache-2.0
"""
The plan of a layer: the kernels that it needs, for numbers of rows that follow from tokens and
experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jitgen.config import Arch
from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.early import EARLY_TOKENS, joined_tokens, mean_rows, sorted_tokens
from jitgen.layer.lora import ExpertLora, activation_problem, needs_activation
from jitgen.layer.lora import problems as of_lora
from jitgen.layer.one_launch import in_plan, most_tokens
from jitgen.layer.problems import (
    between_ranks,
    copied,
    joined_problem,
    of_gradients,
    of_matrices,
    of_rows,
    of_tokens,
    sent_as,
    sorted_problem,
    taken_problem,
)
from jitgen.layer.weights import require_trained
from jitgen.parallel.wire import FLAGS_FROM, require_flags
from jitgen.plans.plan import Plan
from jitgen.plans.sweep import Sweep
from jitgen.selection.numerics import is_invariant
from jitgen.targets.devices import default_arch


def of(  # noqa: PLR0913  # each is one thing that decides about kernels
    chain: Chain,
    max_tokens: int | None,
    arch: Arch | str | None,
    *,
    name: str,
    masked: int | None = None,
    trains: bool = False,
    num_ranks: int | None = None,
    can_mask: bool = False,
    quantises: bool | None = None,
    flags_from: int | None = None,
    lora: ExpertLora | None = None,
) -> Plan:
    """
    Return the plan of `chain` on a target.

    Args:
        chain: The chain.
        max_tokens: Most tokens of a call; None: the tokens of one pass.
        arch: The target; None: that of this process.
        name: Name of the plan.
        masked: Most rows of an expert's matrix in calls of `MoELayer.experts`; None: there are no
            such calls.
        trains: Whether calls need gradients, whose launches never start early.
        num_ranks: Ranks that share the layer by a group, each with `max_tokens`, which must be
            given then; None: there is no group.
        can_mask: Whether ranks that are late are masked.
        quantises: Whether ranks quantise tokens before they send them, where they can; None: the
            plan is for both.
        flags_from: The number of tokens of a rank from which on flags say that data has come; 0:
            they never do. None: the plan is for both, flags as `jitgen.parallel.connect` chooses
            by itself, and none.
        lora: The adapters of the layer.

    Raises:
        InputError: `max_tokens` or `masked` is not a valid number, or the weights have no
            gradients.
    """
    config, weights = chain.config, chain.weights
    if trains:
        require_trained(weights)
        chain = replace(chain, starts_early=False)
    require_tokens(max_tokens)
    require_tokens(masked, "masked")
    ranks = num_ranks or 1
    tokens = min(ranks * (max_tokens or config.chunk_tokens), max(ranks, config.chunk_tokens))
    by_token = tuple(of_tokens(config, weights, target(arch)))
    sums: tuple[Any, ...] = ()
    if num_ranks is not None:  # of collectives, which are not part of the chain
        sums = tuple(each for each in by_token if each.op == "combine")
        by_token = tuple(each for each in by_token if each.op != "combine")
    by_row = tuple(of_rows(config, weights))
    if trains:
        by_row += tuple(of_gradients(config, weights))
    form = Format.NONE if quantises is False else sent_as(config, weights)
    forms = dict.fromkeys((Format.NONE, form) if quantises is None else (form,))
    of_wires = [{"can_mask": can_mask, "form": each} for each in forms]
    rooms: tuple[tuple[int, int, bool], ...] = ()
    if num_ranks is not None:
        rooms = tuple(_rooms(config, max_tokens, flags_from, can_mask, target(arch)))
    joined = joined_problem(config, weights, target(arch))
    few = min(tokens, joined_tokens(config)) if chain.starts_early and chain.joins else 0
    joining: tuple[Sweep, ...] = ()
    if joined is not None and few:  # and the product behind that launch, which is not early
        rows = mean_rows(config, 1), mean_rows(config, few)
        product = by_row[0].with_mean(rows[0])
        joining = (
            Sweep(problem=joined, min_rows=1, max_rows=few),
            Sweep(problem=product, min_rows=rows[0], max_rows=rows[1]),
        )
    return Plan(
        name=name,
        description=f"{weights.groups} of {config.experts} experts, {config.top_k} for each token, "
        f"hidden size {config.hidden}, expert size {config.intermediate}",
        sweeps=tuple(
            Sweep(problem=each.with_mean(least), min_rows=least, max_rows=most, is_early=is_early)
            for first, last, is_early in _parts(tokens, chain.starts_early)
            for problems, least, most in (
                (by_token, first, last),
                (by_row, mean_rows(config, first), mean_rows(config, last)),
            )
            for each in problems
        )
        + tuple(Sweep(problem=each, min_rows=1, max_rows=tokens) for each in sums)
        + joining
        + tuple(_at_once(chain, tokens, target(arch)))
        + tuple(_masked(chain, masked))
        + tuple(dict.fromkeys(_of_ranks(chain, ranks, rooms, of_wires)))
        + tuple(dict.fromkeys(_sorted(chain, ranks, rooms, of_wires, target(arch))))
        + tuple(_copied(chain, tokens, num_ranks, form))
        + tuple(_of_lora(chain, tokens, lora)),
    )


def _at_once(chain: Chain, tokens: int, arch: Arch) -> Iterator[Sweep]:
    """Yield the problems of calls that use one launch."""
    if chain.one_launch is not False:
        most = min(tokens, most_tokens(chain.config))
        for problem in in_plan(chain.config, chain.weights, arch):
            yield Sweep(problem=problem, min_rows=1, max_rows=most, is_optional=True)


def _masked(chain: Chain, most: int | None) -> Iterator[Sweep]:
    """Yield the problems of experts with a matrix each, of at most `most` rows."""
    if most is None:
        return
    for problem in of_matrices(chain.config, chain.weights):
        # A launch that quantises walks over all rows of all matrices, as if they were tokens.
        each = chain.weights.groups // problem.groups
        yield Sweep(problem=problem, min_rows=each, max_rows=each * most)


def _rooms(
    config: MoEConfig, max_tokens: int | None, flags_from: int | None, can_mask: bool, arch: Arch
) -> Iterator[tuple[int, int, bool]]:
    """
    Yield ranges of numbers of tokens of a rank, and whether flags say that data has come.

    Raises:
        InputError: `max_tokens` is None, or there are no flags on the target or for these kernels.
    """
    if max_tokens is None:
        raise InputError("max_tokens", "must be given with a group: those of each rank")
    require_flags(flags_from)
    for impossible, why in (
        (not arch.is_gpu, f"on {arch}, whose kernels have no flags"),
        (can_mask or is_invariant(config.numerics), "with late='mask' or invariant numerics"),
    ):
        if impossible and flags_from:
            raise InputError("flags_from", f"must be 0 or None {why}")
        flags_from = 0 if impossible else flags_from
    yield 1, min(max_tokens, flags_from - 1) if flags_from else max_tokens, False
    least = FLAGS_FROM if flags_from is None else flags_from
    if least and least <= max_tokens:
        yield least, max_tokens, True


def _of_ranks(
    chain: Chain,
    num_ranks: int,
    rooms: Iterable[tuple[int, int, bool]],
    of_wires: Sequence[Mapping[str, Any]],
) -> Iterator[Sweep]:
    """
    Yield the problems of exchanging tokens and sums between ranks, also for a group of one rank,
    for numbers of tokens in `rooms`.
    """
    for least, most, by_flags in rooms:
        for of_wire in of_wires:
            for problem in between_ranks(chain.config, num_ranks, by_flags=by_flags, **of_wire):
                yield Sweep(problem=problem, min_rows=least, max_rows=most)


def _sorted(
    chain: Chain,
    num_ranks: int,
    rooms: Iterable[tuple[int, int, bool]],
    of_wires: Sequence[Mapping[str, Any]],
    arch: Arch,
) -> Iterator[Sweep]:
    """
    Yield the problems of sending few tokens to ranks that sort their pairs in the same launch, for
    those numbers of tokens in `rooms` for which there are no flags.
    """
    if not chain.starts_early or not chain.may_join:
        return
    for room in (most for _, most, by_flags in rooms if not by_flags):
        for of_wire in of_wires:
            problem = sorted_problem(chain.config, chain.weights, num_ranks, arch, **of_wire)
            if problem is None:
                continue
            most = min(room, sorted_tokens(problem, arch))
            left = min(most, chain.config.chunk_tokens // num_ranks) if problem.leaves else 0
            taken = taken_problem(chain.config, chain.weights)
            if left and taken is not None:
                yield Sweep(problem=problem, min_rows=1, max_rows=left)
                yield Sweep(problem=taken, min_rows=num_ranks, max_rows=num_ranks * left)
            if left < most:
                stored = replace(problem, m=left + 1, leaves=False)
                yield Sweep(problem=stored, min_rows=left + 1, max_rows=most)


def _copied(chain: Chain, tokens: int, num_ranks: int | None, form: Format) -> Iterator[Sweep]:
    """Yield the problem of gathering rows of tokens that ranks sent as `form`, of all ranks."""
    if num_ranks is not None and form is not Format.NONE:
        yield Sweep(problem=copied(chain.config, form), min_rows=1, max_rows=tokens)


def _of_lora(chain: Chain, tokens: int, lora: ExpertLora | None) -> Iterator[Sweep]:
    """Yield the problems of adapters."""
    if lora is None:
        return
    by_token = tuple(of_lora(chain.config, chain.weights, lora))
    by_row: tuple[Any, ...] = ()
    if needs_activation(chain.weights, lora):
        by_row = (activation_problem(chain.config, chain.weights),)
    for first, last, is_early in _parts(tokens, chain.starts_early):
        rows = mean_rows(chain.config, first), mean_rows(chain.config, last)
        for problems, least, most in ((by_token, first, last), (by_row, *rows)):
            for each in problems:
                problem = each.with_mean(least)
                yield Sweep(problem=problem, min_rows=least, max_rows=most, is_early=is_early)


def _parts(tokens: int, starts_early: bool) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of numbers of tokens, and whether launches for them start early."""
    few = min(tokens, EARLY_TOKENS) if starts_early else 0
    if few:
        yield 1, few, True
    if tokens > few:
        yield few + 1, tokens, False


def require_tokens(given: object, name: str = "max_tokens") -> None:
    """Require a number of tokens, or None."""
    if given is not None and (type(given) is not int or given < 1):
        raise InputError(name, f"must be an integer of at least 1, or None (got {given!r})")


def target(arch: Arch | str | None) -> Arch:
    """Return the target; if none is named, the default target of this process."""
    return default_arch() if arch is None else Arch.parse(arch)
