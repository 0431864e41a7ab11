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
from jitgen.ops.permute_quantize.taking import take_rows
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
from tests.compile.mistakes_sorted import LEFT_MISTAKES, SORT_MISTAKES
from tests.compile.ranks import Kernels, Layer
from tests.moe_cases import make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

FORMS = [Format.NONE, Format.BLOCK128, Format.ROW]
COUNTS = [(3, 2), (0, 2), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)]


def sorting(form: Format, *, masks: bool = False, arch: str = "sm_90a", **tiling: Any) -> Kernels:
    """Return kernels of which `dispatch` sorts."""
    first = DispatchConfig(format=form, can_mask=masks, sorts=True, tiling=Tiling(**tiling))
    return Kernels(first, CombineRanksConfig(can_mask=masks), arch=Arch(arch))


def leaving(arch: str = "sm_90a", pauses: int | None = None, **tiling: Any) -> Kernels:
    """Return kernels of which `dispatch` leaves rows in the inbox, and another one takes them."""
    first = DispatchConfig(sorts=True, leaves=True, tiling=Tiling(**tiling))
    return Kernels(first, CombineRanksConfig(), arch=Arch(arch), pauses=pauses)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_it_is_right(counts: tuple[int, ...], form: Format) -> None:
    modes = "quick" if len(counts) == 2 else "eager,late-links"

    assert Layer(counts, sorting(form)).found(modes) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("pauses", [None, 1])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_rows_are_taken_from_the_inbox(counts: tuple[int, ...], pauses: int | None) -> None:
    """Also those that come long after their experts."""
    modes = "quick" if len(counts) == 2 else "eager,late-links"

    assert Layer(counts, leaving(pauses=pauses)).found(modes) == []


@pytest.mark.nightly
@pytest.mark.parametrize("counts", [*COUNTS, (32, 31)], ids=str)
def test_rows_are_taken_in_all_modes(counts: tuple[int, ...]) -> None:
    modes = "all" if len(counts) < 8 else "quick"
    assert Layer(counts, leaving()).found(modes) == []
    assert Layer(counts, leaving(pauses=0)).found("eager,slow-links,random-1") == []
    assert Layer(counts, leaving("sm_100a")).found("eager,slow-links") == []


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", [one_is_late, one_ends_late, one_waits, two_are_late, chain])
@pytest.mark.parametrize("mode", ["eager", "slow-links", "late-links", "random-1"])
def test_late_ranks_are_masked(scenario: Any, mode: str, form: Format) -> None:
    """The order is always that of the experts that were taken: one CTA takes and sorts them."""
    given = {**scenario(4), "kernels": sorting(form, masks=True)}

    assert Layer(**given).found(mode) == []


@pytest.mark.parametrize("mode", ["lost-device-1", "lost-device-1-from-2", "lost-device-1-from-4"])
def test_one_that_is_lost_is_masked(mode: str) -> None:
    layer = Layer((2, 2, 1), sorting(Format.NONE, masks=True), limit_ms=1)

    assert layer.found(mode) == []
    assert [{*each} for each in layer.masked()] == [{1}, {0, 2}, {1}]


@pytest.mark.parametrize(
    ("mode", "step", "leaves"),
    [
        ("lost-device-1", "dispatch", False),
        ("lost-device-1", "dispatch", True),
        ("lost-device-1-from-2", "combine_ranks", False),
        ("lost-device-1-from-3", "combine_ranks", True),  # after the launch that takes rows
    ],
)
def test_a_wait_comes_to_its_limit(mode: str, step: str, leaves: bool) -> None:
    layer = Layer((2, 2), leaving() if leaves else sorting(Format.NONE), limit_ms=1)
    (found,) = layer.found(mode)

    assert rounds.late(layer.states[0]) == rounds.Late(step, 1, 1)
    assert "order of" not in found, "products read rows by the order, which has to be one"


def test_a_wait_for_a_row_comes_to_its_limit() -> None:
    """Experts of a rank have come, but its rows have not."""
    only = "if item % record.length >= record.columns:"
    send = "        send(given, inbox, peers, record, (rank, wait), item)\n"
    kernels = leaving()
    kernels.edits, kernels.edited = {"dispatch": (send, f"        {only}\n    {send}")}, 1
    layer = Layer((6, 6), kernels, limit_ms=1)
    layer.found("eager")

    assert rounds.late(layer.states[0]) == rounds.Late("dispatch", 1, 1)


ALL_MISTAKES = [*SORT_MISTAKES, *LEFT_MISTAKES]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("mistake", "op"), cases_of(ALL_MISTAKES), ids=str)
def test_a_mistake_is_found(mistake: Mistake, op: str) -> None:
    found = mistake.found_in(op)

    assert mistake.is_in(found), found


@pytest.mark.nightly
@pytest.mark.parametrize(("mistake", "op", "devices"), cases_on_more(ALL_MISTAKES), ids=str)
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


@pytest.mark.parametrize("form", ["none", "block128", "row"])
def test_rows_that_were_left_are_taken(form: str) -> None:
    """They have the bits of `permute_quantize`."""
    x, weights, link = torch.randn(5, 64).bfloat16(), torch.rand(5, 2), link_of_one(8)
    ids = torch.tensor([[4, 9], [3, 3], [-1, 5], [7, 2], [5, 4]], dtype=torch.int32)
    with device("sm_90a"):
        local = Local(3, 4, leaves=True)
        found = dispatch(x, ids, weights, link, room=8, local=local)
        assert found.order is not None
        assert found.x.shape == (0, 64)
        q, scale = take_rows(link, found.order.inverse, 64, form=Format(form))
    pairs = jitgen.reference.sort_pairs(ids, experts=10, first_expert=3, local_experts=4)
    wanted, of_rows = jitgen.reference.permute_quantize(
        x, pairs.permutation, top_k=2, offs=pairs.offs, format=form
    )
    rows = int(pairs.offs[-1])

    assert torch.equal(q[:rows].view(torch.uint8), wanted[:rows].view(torch.uint8))
    if scale is not None and of_rows is not None:
        assert torch.equal(scale[:rows], of_rows[:rows])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"form": Format.TENSOR}, "form: must be none, block128 or row"),
        (
            {"inverse": torch.zeros(3, 2, dtype=torch.int32)},
            r"inverse: must have shape \(a multipl",
        ),
        ({"columns": 24}, "columns: must be a multiple of 16"),
        ({"columns": 128}, "room: must be at most"),
        ({"link": link_of_one(4)._replace(by_flags=True)}, "link: must be without notes and flags"),
        ({"out": (torch.zeros(8, 64), None)}, r"out\[0\]: must be torch.bfloat16"),
    ],
)
def test_what_cannot_be_taken_is_refused(given: dict[str, Any], words: str) -> None:
    link = link_of_one(4)
    two = link._replace(peers=link.peers.repeat(2), inbox=link.inbox.view(2, -1, 4))
    call = {"link": two, "inverse": torch.zeros(4, 2, dtype=torch.int32), "columns": 64}
    call |= {"form": Format.NONE, **given}
    with device("sm_90a"), pytest.raises(InputError, match=words):
        take_rows(call.pop("link"), call.pop("inverse"), call.pop("columns"), **call)


@pytest.mark.parametrize(
    ("room", "local", "config", "words"),
    [
        (300, Local(0, 4), None, "no kernel for bf16 tokens, with sorted pairs"),
        (8, Local(0, 513), None, "no kernel for bf16 tokens, with sorted pairs"),
        (8, Local(0, 4), DispatchConfig(), "config: must have sorts=True here"),
        (8, None, DispatchConfig(sorts=True), "config: must have sorts=False here"),
        (8, Local(0, 4, leaves=True), DispatchConfig(sorts=True), "config: must have leaves=True"),
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
        local = Local(case.config.first_expert, case.config.groups)
        assert found == local._replace(leaves=True)
        few = replace(case.config, chunk_tokens=2)
        assert sorts_on_arrival(few, *given[1:], **kind) == local  # type: ignore[arg-type]
        zero = replace(case.config, zero_experts=1)
        assert sorts_on_arrival(zero, *given[1:], **kind) == local  # type: ignore[arg-type]
        sent = {"can_mask": False, "form": Format.BLOCK128}
        assert sorts_on_arrival(*given, **sent) == local  # type: ignore[arg-type]
        sent = {"can_mask": True, "form": Format.NONE}
        assert sorts_on_arrival(*given, **sent) == local  # type: ignore[arg-type]
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
