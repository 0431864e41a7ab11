# SPDX-License-Identifier: Apache-2.0
"""
`dispatch` and `combine_ranks` on 2, 4 and 8 emulated devices that replay at their own pace: right
as they are, and wrong without any one of their scopes, waits, rounds and places.
"""

from __future__ import annotations

import pytest

from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, Tiling
from jitgen.ops.dispatch import rounds
from tests import needs
from tests.compile.mistakes import EXPERT_MISTAKES, MISTAKES, Mistake, cases_of, cases_on_more
from tests.compile.ranks import WRONG, Kernels, Layer

pytestmark = [needs.compiler, needs.linker]


@pytest.mark.parametrize(
    ("counts", "modes"),
    [
        ((3, 3), "quick"),
        ((0, 2), "quick"),  # a rank without tokens sends rows of none
        ((3, 1, 0, 2), "eager,late-links"),
        ((2, 1, 0, 2, 1, 1, 2, 0), "eager"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_it_is_right(counts: tuple[int, ...], modes: str) -> None:
    assert Layer(counts).found(modes) == []


EXPERTS = CombineRanksConfig(of_experts=True)


@pytest.mark.parametrize(
    ("counts", "modes"),
    [((3, 2), "quick"), ((3, 1, 0, 2), "eager,late-links"), ((2, 1, 0, 2, 1, 1, 2, 0), "eager")],
    ids=str,
)
def test_rows_of_experts_are_right(counts: tuple[int, ...], modes: str) -> None:
    assert Layer(counts, Kernels(combine_ranks=EXPERTS)).found(modes) == []


@pytest.mark.parametrize("counts", [(3, 1), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)], ids=str)
@pytest.mark.parametrize("kind", ["fast", "invariant", "mask"])
def test_so_are_those_of_blackwell(kind: str, counts: tuple[int, ...]) -> None:
    first = DispatchConfig(can_mask=kind == "mask")
    second = EXPERTS if kind == "invariant" else CombineRanksConfig(can_mask=kind == "mask")
    kernels = Kernels(first, second, arch=Arch("sm_100a"))

    assert Layer(counts, kernels).found("eager,slow-links") == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["fast", "invariant", "mask"])
def test_those_of_blackwell_are_right_in_all_modes(kind: str) -> None:
    first = DispatchConfig(can_mask=kind == "mask")
    second = EXPERTS if kind == "invariant" else CombineRanksConfig(can_mask=kind == "mask")

    assert Layer((3, 1), Kernels(first, second, arch=Arch("sm_100a"))).found("all") == []


@pytest.mark.nightly
@pytest.mark.parametrize("counts", [(3, 1), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)], ids=str)
def test_it_is_right_in_all_modes(counts: tuple[int, ...]) -> None:
    assert Layer(counts).found("all") == []
    assert Layer(counts, Kernels(combine_ranks=EXPERTS)).found("all") == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "tiling", [Tiling(threads=512), Tiling(threads=128), Tiling(use_pdl=False)], ids=str
)
def test_other_tilings_are_right(tiling: Tiling) -> None:
    kernels = Kernels(DispatchConfig(tiling=tiling), CombineRanksConfig(tiling=tiling))

    assert Layer((4, 3), kernels, hidden=320).found("quick") == []


def test_ctas_that_take_several_vectors() -> None:
    assert Layer((4, 4), hidden=320).found("eager,reversed") == []


@pytest.mark.parametrize(
    ("mode", "step"),
    [("lost-device-1", "dispatch"), ("lost-device-1-from-3", "combine_ranks")],
)
def test_a_wait_comes_to_its_limit(mode: str, step: str) -> None:
    """Nothing hangs: the state says who did not send what in which round."""
    layer = Layer((2, 2), limit_ms=1)
    layer.found(mode)

    assert rounds.late(layer.states[0]) == rounds.Late(step, 1, 1)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("mistake", "op"), cases_of([*MISTAKES, *EXPERT_MISTAKES]), ids=str)
def test_a_mistake_is_found(mistake: Mistake, op: str) -> None:
    found = mistake.found_in(op)

    assert mistake.is_in(found), found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mistake", "op", "devices"), cases_on_more([*MISTAKES, *EXPERT_MISTAKES]), ids=str
)
def test_a_mistake_is_found_on_more_devices(mistake: Mistake, op: str, devices: int) -> None:
    found = mistake.found_in(op, devices)

    assert mistake.is_in(found), found


def test_one_inbox_for_tokens_and_sums() -> None:
    found = Layer((2, 1), banks=1).found("quick")

    assert any(text.startswith((WRONG, "result")) for text in found), found
