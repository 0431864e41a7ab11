# SPDX-License-Identifier: Apache-2.0
"""Configs that a target refuses: what is asked of every refusal, and that it is the end of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.compile import compiler, isolated
from jitgen.config import BLayout, Config, DType, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.errors import UnsupportedConfig
from jitgen.targets.legality import check

WIDE = Operands(
    a_dtype=DType.BF16,
    b_dtype=DType.E2M1,
    scale_granularity=ScaleGranularity.MX32,
    a_scale_granularity=ScaleGranularity.NONE,
    b_layout=BLayout.WIDE1,
)
"""Prepacked weights beside bfloat16 tokens, for which many fields of a schedule are refused."""


def gemm(
    m: int = 128,
    n: int = 128,
    k: int = 128,
    *,
    stages: int = 1,
    cluster: tuple[int, int] = (1, 1),
    two_cta: bool = False,
    split_k: int = 1,
    safe_selectors: bool = False,
    num_ab_stage: int | None = None,
    layout: str = "ragged",
    **operands: object,
) -> GroupedGemmConfig:
    """Return a config of the grouped GEMM from its tile, other fields and those of its operands."""
    return GroupedGemmConfig(
        layout=layout,
        operands=Operands(**operands),
        tile=Tile(m=m, n=n, k=k),
        cluster=Cluster(m=cluster[0], n=cluster[1]),
        pipeline=Pipeline(num_acc_stage=stages, num_ab_stage=num_ab_stage),
        schedule=Schedule(two_cta=two_cta, split_k=split_k, safe_selectors=safe_selectors),
    )


def assert_refused(config: Config, arch: str, code: str, number: str = "") -> Any:
    """Assert a refusal with its code, a number in its reason, and a legal neighbour; return it."""
    verdict = check(config, arch)

    assert not verdict
    assert verdict.code == code
    assert verdict.reason
    assert number in verdict.reason
    assert verdict.derived is None
    assert verdict.proposal is not None
    assert check(verdict.proposal, arch)
    return verdict


def random_refusals(
    at_random: Callable[[random.Random], Any], arch: str, count: int, seed: int
) -> Iterator[Any]:
    """Yield refused ones of the configs that `at_random` makes, the same every time."""
    chance = random.Random(seed)
    while count:
        asked = at_random(chance)
        if not check(asked, arch):
            count -= 1
            yield asked


def codes_of(refusals: Iterable[Any], arch: str) -> set[str]:
    """
    Return the codes of grouped GEMMs that are refused, each of which has a reason with numbers and
    a legal proposal of the same layout.
    """
    codes = set()
    for refused in refusals:
        verdict = check(refused, arch)

        assert re.fullmatch(r"E_[A-Z_]+", verdict.code), refused
        assert re.search(r"\d", verdict.reason), verdict.reason
        assert verdict.proposal is not None, refused
        assert verdict.proposal.layout == refused.layout
        assert check(verdict.proposal, arch), refused
        codes.add(verdict.code)
    return codes


def assert_none_is_compiled(
    refusals: Iterable[Any], arch: str, monkeypatch: pytest.MonkeyPatch, cache_root: Path
) -> None:
    """
    Assert that asking for a kernel of any of `refusals` raises before anything is compiled, here or
    in a process, or published.
    """

    def never(*_: object, **__: object) -> None:
        pytest.fail("the compiler was called")

    monkeypatch.setattr(compiler, "compile_source", never)
    monkeypatch.setattr(isolated, "compile_task", never)
    for refused in refusals:
        with pytest.raises(UnsupportedConfig) as caught:
            jitgen.get_kernel(refused, arch)

        assert caught.value.code == check(refused, arch).code
    assert not [*cache_root.rglob("kernel.*")]
