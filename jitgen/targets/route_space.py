# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `route`: which fields of a config go together, and which sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.config import DType
from jitgen.config.route import (
    COMPUTED,
    MOST_EXPERTS,
    MOST_TOP_K,
    SCORES,
    GroupScoring,
    RouteConfig,
    RouteProblem,
    Scoring,
)
from jitgen.targets.protocol import refuse_unless

EXPERTS = (32, 64, 128, 256, 512, MOST_EXPERTS)
"""The most experts of a kernel: a lane of a GPU has as many of each token as that is times 32."""


def check_kind(config: RouteConfig) -> None:
    """
    Require that fields about choosing are set only in kernels that choose.

    Raises:
        Refusal: A field about choosing is set although experts are given (``E_GIVEN``) or are those
            of a table (``E_HASHED``), the scoring of groups is set without groups (``E_GROUPS``),
            or the type of logits is none of `SCORES` (``E_SCORES``).
    """
    is_given = config.scoring is Scoring.GIVEN
    is_chosen = config.bias or config.grouped
    refuse_unless(
        not is_given
        or not (is_chosen or config.softcap or config.hashed or config.load or config.scores_dtype),
        "E_GIVEN",
        "scores_dtype, bias, grouped, softcap, hashed and load are for choosing: where experts are "
        "given, leave them out",
    )
    refuse_unless(
        not (config.hashed and is_chosen),
        "E_HASHED",
        "bias and grouped are for choosing: where a table has the experts, leave them out",
    )
    refuse_unless(
        config.grouped or config.group_scoring is GroupScoring.TOP2,
        "E_GROUPS",
        f"group_scoring={config.group_scoring} is for experts in groups: set grouped",
    )
    refuse_unless(
        is_given or config.scores_dtype in SCORES,
        "E_SCORES",
        f"scores_dtype={config.scores_dtype} is not one of {', '.join(SCORES)}",
    )


def legal_kind(config: RouteConfig) -> RouteConfig:
    """Return `config` with fields that go together."""
    if config.scoring is Scoring.GIVEN:
        return RouteConfig(scoring=config.scoring, experts=config.experts, tiling=config.tiling)
    if config.hashed:
        config = replace(config, bias=False, grouped=False)
    if not config.grouped:
        config = replace(config, group_scoring=GroupScoring.TOP2)
    if config.scores_dtype not in SCORES:
        return replace(config, scores_dtype=DType.F32)
    return config


def check_experts(config: RouteConfig) -> None:
    """
    Check that kernels support the number of experts.

    Raises:
        Refusal: They do not support it; the code is ``E_EXPERTS``.
    """
    refuse_unless(
        config.experts in EXPERTS,
        "E_EXPERTS",
        f"experts={config.experts} is not one of {', '.join(map(str, EXPERTS))}",
    )


def room_for(experts: int) -> int | None:
    """Return the smallest of `EXPERTS` that is enough for `experts`; None where none is."""
    return next((most for most in EXPERTS if most >= experts), None)


def check_sizes(problem: RouteProblem) -> None:
    """
    Require that a token has at most `MOST_TOP_K` experts.

    Raises:
        Refusal: A token has more; the code is ``E_SIZE``.
    """
    refuse_unless(
        problem.top_k <= MOST_TOP_K,
        "E_SIZE",
        f"must have at most {MOST_TOP_K} experts a token (got {problem.top_k})",
    )


def kinds() -> Iterator[RouteConfig]:
    """
    Yield configs with the default sizes: one for given experts, each combination of scoring, type,
    bias and groups, and for each scoring some with maxima of groups, softcap, hash table and load.
    """
    yield RouteConfig(scoring=Scoring.GIVEN)
    for scoring, dtype, bias, grouped in itertools.product(
        COMPUTED, SCORES, (False, True), (False, True)
    ):
        yield RouteConfig(scoring=scoring, scores_dtype=dtype, bias=bias, grouped=grouped)
    for scoring, dtype in zip(COMPUTED, itertools.cycle(SCORES)):
        plain = RouteConfig(scoring=scoring, scores_dtype=dtype)
        best = replace(plain, grouped=True, group_scoring=GroupScoring.MAX)
        softcap, hashed = replace(plain, softcap=True), replace(plain, hashed=True)
        yield from (best, replace(best, bias=True), softcap, replace(softcap, grouped=True))
        yield from (hashed, replace(hashed, softcap=True))
        yield from (replace(plain, load=True), replace(hashed, load=True))


def kind_of(problem: RouteProblem) -> RouteConfig:
    """Return the config of every kernel for `problem`, with the default experts and tiling."""
    return RouteConfig(
        scoring=problem.scoring,
        scores_dtype=problem.scores_dtype,
        bias=problem.bias,
        grouped=problem.expert_groups > 1,
        group_scoring=problem.group_scoring,
        softcap=problem.softcap,
        hashed=problem.hashed,
        load=problem.load,
    )
