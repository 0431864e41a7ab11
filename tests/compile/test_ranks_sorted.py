# SPDX-License-Identifier: Apache-2.0
"""
`dispatch` that also sorts the pairs of few tokens, on 2, 4 and 8 emulated devices: right as it is,
and wrong with any one mistake; and layers of ranks that use it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import jitgen
from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, DispatchProblem, Tiling
from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.layer.early import sorted_tokens, sorts_on_arrival
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch.call import Local, dispatch
from jitgen.ops.dispatch.rounds import Link, new_state
from jitgen.verify import device
from tests import needs
from tests.compile.mistakes import (
    Mistake,
    cases_of,
    cases_on_more,
    chain,
    one_ends_late,
    one_is_late,
    one_waits,
    two_are_late,
)
from tests.compile.mistakes_sorted import SORT_MISTAKES
from tests.compile.ranks import Kernels, Layer
from tests.moe_cases import make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

FORMS = [Format.NONE, Format.BLOCK128, Format.ROW]
COUNTS = [(3, 2), (0, 2), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)]


def sorting(form: Format, *, masks: bool = False, arch: str = "sm_90a", **tiling: Any) -> Kernels:
    """Return kernels of which `dispatch` sorts."""
    first = DispatchConfig(format=form, can_mask=masks, sorts=True, tiling=Tiling(**tiling))
    return Kernels(first, CombineRanksConfig(can_mask=masks), arch=Arch(arch))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_it_is_right(counts: tuple[int, ...], form: Format) -> None:
    modes = "quick" if len(counts) == 2 else "eager,late-links"

    assert Layer(counts, sorting(form)).found(modes) == []


@pytest.mark.parametrize("form", FORMS)
def test_pairs_of_several_warps(form: Format) -> None:
    """As many as a CTA has threads, and rows of several CTAs."""
    assert Layer((32, 31), sorting(form, threads=128), hidden=320).found("eager,reversed") == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_it_is_right_in_all_modes(counts: tuple[int, ...], form: Format) -> None:
    assert Layer(counts, sorting(form)).found("all") == []
    assert Layer(counts, sorting(form, arch="sm_100a")).found("eager,slow-links") == []
    assert Layer(counts, sorting(form, threads=512, use_pdl=False)).found("eager") == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", [one_is_late, one_ends_late, one_waits, two_are_late, chain])
@pytest.mark.parametrize("mode", ["eager", "slow-links", "late-links", "random-1"])
def test_late_ranks_are_masked(scenario: Any, mode: str, form: Format) -> None:
    """The order is always that of the experts that were taken: one CTA takes and sorts them."""
    given = {**scenario(4), "kernels": sorting(form, masks=True)}

    assert Layer(**given).found(mode) == []


@pytest.mark.parametrize("mode", ["lost-device-1", "lost-device-1-from-3", "lost-device-1-from-6"])
def test_one_that_is_lost_is_masked(mode: str) -> None:
    layer = Layer((2, 2, 1), sorting(Format.NONE, masks=True), limit_ms=1)

    assert layer.found(mode) == []
    assert [{*each} for each in layer.masked()] == [{1}, {0, 2}, {1}]


@pytest.mark.parametrize(
    ("mode", "step"),
    [("lost-device-1", "dispatch"), ("lost-device-1-from-3", "combine_ranks")],
)
def test_a_wait_comes_to_its_limit(mode: str, step: str) -> None:
    layer = Layer((2, 2), sorting(Format.NONE), limit_ms=1)
    (found,) = layer.found(mode)

    assert rounds.late(layer.states[0]) == rounds.Late(step, 1, 1)
    assert "order of" not in found, "products read rows by the order, which has to be one"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("mistake", "op"), cases_of(SORT_MISTAKES), ids=str)
def test_a_mistake_is_found(mistake: Mistake, op: str) -> None:
    found = mistake.found_in(op)

    assert mistake.is_in(found), found


@pytest.mark.nightly
@pytest.mark.parametrize(("mistake", "op", "devices"), cases_on_more(SORT_MISTAKES), ids=str)
def test_a_mistake_is_found_on_more_devices(mistake: Mistake, op: str, devices: int) -> None:
    found = mistake.found_in(op, devices)

    assert mistake.is_in(found), found


def link_of_one(room: int) -> Link:
    """Return the connection of a rank to no other."""
    inbox = torch.zeros(1, room * (16 + 2), 4, dtype=torch.int32)
    peers = torch.tensor([inbox.data_ptr()])
    return Link(inbox, peers, new_state(0, 1000, "cpu"))


def test_a_call_gives_what_sort_pairs_gives() -> None:
    x, weights = torch.randn(5, 64).bfloat16(), torch.rand(5, 2)
    ids = torch.tensor([[4, 9], [3, 3], [-1, 5], [7, 2], [5, 4]], dtype=torch.int32)
    with device("sm_90a"):
        found = dispatch(x, ids, weights, link_of_one(8), room=8, local=Local(3, 4))
    assert found.order is not None
    padded = torch.cat([ids, torch.full((3, 2), -1, dtype=torch.int32)])
    wanted = jitgen.reference.sort_pairs(padded, experts=10, first_expert=3, local_experts=4)

    assert torch.equal(found.topk_ids, padded)
    assert torch.equal(found.x[:5], x)
    assert all(map(torch.equal, found.order, wanted))


@pytest.mark.parametrize(
    ("room", "local", "config", "words"),
    [
        (300, Local(0, 4), None, "no kernel for bf16 tokens, with sorted pairs"),
        (8, Local(0, 513), None, "no kernel for bf16 tokens, with sorted pairs"),
        (8, Local(0, 4), DispatchConfig(), "config: must have sorts=True here"),
        (8, None, DispatchConfig(sorts=True), "config: must have sorts=False here"),
        (200, Local(0, 4), DispatchConfig(sorts=True), "config: must have 400 threads or more"),
    ],
)
def test_what_cannot_be_sorted_is_refused(
    room: int, local: Local | None, config: DispatchConfig | None, words: str
) -> None:
    x, ids = torch.zeros(1, 64).bfloat16(), torch.zeros(1, 2, dtype=torch.int32)
    with device("sm_90a"), pytest.raises(InputError, match=words):
        dispatch(x, ids, torch.ones(1, 2), link_of_one(room), room=room, config=config, local=local)


@pytest.mark.parametrize(
    ("ranks", "top_k", "experts", "most"),
    [(2, 8, 128, 16), (4, 8, 64, 16), (8, 8, 32, 4), (2, 1, 8, 256), (8, 32, 8, 1), (2, 8, 513, 0)],
)
def test_few_tokens_are_sorted(ranks: int, top_k: int, experts: int, most: int) -> None:
    """As many as one CTA has threads for, up to an edge of the selector."""
    problem = DispatchProblem(m=1, k=64, top_k=top_k, ranks=ranks, experts=experts)

    assert sorted_tokens(problem, Arch.SM_90A) == most


def test_a_layer_takes_the_launch_that_is_there() -> None:
    """A rank may sort by another launch than its peers: what travels is the same."""
    case = make("block128")
    kind = {"can_mask": False, "form": Format.NONE}
    given = case.config, case.weights, 2, 3
    with device("sm_90a"):
        found = sorts_on_arrival(*given, **kind)  # type: ignore[arg-type]
        assert found == Local(case.config.first_expert, case.config.groups)
        assert sorts_on_arrival(*given[:3], 1000, **kind) is None  # type: ignore[arg-type]
    with jitgen.Session(on_miss="fallback"), device("sm_90a"):
        assert sorts_on_arrival(*given, **kind) is None  # type: ignore[arg-type]
    with device("sm_100a"):
        assert sorts_on_arrival(*given, **kind) is None  # type: ignore[arg-type]
    assert sorts_on_arrival(*given, **kind) is None  # type: ignore[arg-type]  # on a CPU


@pytest.mark.parametrize("form", ["block128", "bf16"])
def test_an_explicit_config_for_sorting_is_taken(form: str) -> None:
    case = make(form)
    chain_of = jitgen.MoELayer(case.config, case.weights)._chain

    assert chain_of.may_join
    assert not replace(chain_of, configs={"route": None}).may_join
    assert not replace(chain_of, joins=False).may_join
