# SPDX-License-Identifier: Apache-2.0
"""
`dispatch` and `combine_ranks` on 2, 4 and 8 emulated devices that replay at their own pace: right
as they are, and wrong without any one of their scopes, waits, rounds and places.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitgen.config import Arch
from jitgen.config.combine import CombineConfig
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, Tiling
from jitgen.config.format import Format
from jitgen.ops.dispatch import rounds
from jitgen.verify import DeviceCall, OnDevices, Window
from jitgen.verify.emulation import emulate
from tests import needs
from tests.compile.kernels import on_gpu
from tests.compile.mistakes import EXPERT_MISTAKES, MISTAKES, Mistake, cases_of, cases_on_more
from tests.compile.mistakes_flags import FLAG_MISTAKES
from tests.compile.mistakes_records import RECORD_MISTAKES
from tests.compile.ranks import WRONG, Kernels, Layer

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]


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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("counts", "modes"),
    [((3, 1, 0, 2), "eager,late-links"), ((3, 2), "quick"), ((2, 1, 0, 2, 1, 1, 2, 0), "eager")],
    ids=str,
)
def test_rows_of_experts_are_right(counts: tuple[int, ...], modes: str) -> None:
    assert Layer(counts, Kernels(combine_ranks=EXPERTS)).found(modes) == []


@pytest.mark.parametrize("kind", [EXPERTS, CombineRanksConfig()], ids=["rows", "sums"])
def test_rows_of_experts_are_added_up_as_by_combine(kind: CombineRanksConfig) -> None:
    """
    Bit by bit, what one rank computes alone; rows of experts with a shared expert that is weighted,
    before which local sums are rounded.
    """
    tokens, hidden, top_k = 5, 64, 11
    chance = torch.Generator().manual_seed(0)
    inverse = torch.randperm(tokens * top_k, generator=chance).view(tokens, top_k).int()
    inverse[1, 2] = -1
    inbox = Window([torch.zeros(1, tokens * (1 + top_k * hidden // 4), 4, dtype=torch.int32)])
    state = rounds.new_state(0, 1000, "cpu")
    state[rounds.DISPATCHED] = 1
    link = {"inbox": inbox.tensors[0], "peers": inbox.table(on=0), "state": state}
    given = {
        "y": torch.randn(tokens * top_k, hidden, generator=chance).bfloat16(),
        "inverse": inverse,
        "topk_weights": torch.rand(tokens, top_k, generator=chance),
    }
    extra = {}
    if kind.of_experts:
        extra["shared"] = torch.randn(tokens, hidden, generator=chance).bfloat16()
        extra["shared_weights"] = torch.rand(tokens, generator=chance)
    adds = {"has_shared": kind.of_experts, "is_weighted": kind.of_experts}
    outs = [torch.zeros(tokens, hidden, dtype=torch.bfloat16) for _ in range(2)]
    calls = [
        DeviceCall(device=0, kernel=on_gpu(config), arguments={**arguments, "num_sms": 2})
        for config, arguments in (
            (CombineConfig(**adds), {**given, **extra, "out": outs[0]}),
            (replace(kind, **adds), {**given, **link, **extra, "out": outs[1]}),
        )
    ]
    emulate(OnDevices(calls=calls, windows={"inbox": inbox}), modes="eager", num_sms=2)

    assert outs[0].float().norm() > 1
    assert torch.equal(*outs)


QUANTISED = [Format.BLOCK128, Format.ROW]


def records(form: Format, *, invariant: bool = False, arch: str = "sm_90a") -> Kernels:
    """Return kernels of tokens that are quantised before they are sent."""
    second = EXPERTS if invariant else CombineRanksConfig()
    return Kernels(DispatchConfig(format=form), second, arch=Arch(arch))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", QUANTISED)
@pytest.mark.parametrize(
    ("counts", "modes"),
    [
        ((3, 2), "quick"),
        ((0, 2), "eager,late-links"),
        ((3, 1, 0, 2), "eager,late-links"),
        ((2, 1, 0, 2, 1, 1, 2, 0), "eager"),
    ],
    ids=str,
)
def test_quantised_tokens_are_right(counts: tuple[int, ...], modes: str, form: Format) -> None:
    """Values and scales are those of quantising what arrives otherwise, bit by bit."""
    assert Layer(counts, records(form)).found(modes) == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", QUANTISED)
@pytest.mark.parametrize("counts", [(3, 1), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)], ids=str)
def test_quantised_tokens_are_right_in_all_modes(counts: tuple[int, ...], form: Format) -> None:
    assert Layer(counts, records(form)).found("all") == []
    assert Layer(counts, records(form, invariant=True)).found("all") == []
    assert Layer(counts, records(form, arch="sm_100a")).found("eager,slow-links") == []


@pytest.mark.parametrize("form", QUANTISED)
def test_quantised_tokens_of_several_parts(form: Format) -> None:
    """More tokens than CTAs, a row that a warp or the threads of a CTA do not take at once."""
    assert Layer((3, 2), records(form), hidden=2624).found("eager") == []


def flags(form: Format = Format.NONE, arch: str = "sm_90a") -> Kernels:
    """Return kernels with flags, which say that data has come."""
    first = DispatchConfig(format=form, by_flags=True)
    return Kernels(first, CombineRanksConfig(by_flags=True), arch=Arch(arch))


SENT = [Format.NONE, *QUANTISED]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize(
    ("counts", "modes"),
    [
        ((3, 2), "quick"),
        ((0, 2), "eager,late-links"),
        ((20, 20), "eager,reversed"),
        ((3, 1, 0, 2), "eager,late-links"),
        ((2, 1, 0, 2, 1, 1, 2, 0), "eager"),
    ],
    ids=str,
)
def test_flags_are_right(counts: tuple[int, ...], modes: str, form: Format) -> None:
    assert Layer(counts, flags(form)).found(modes) == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize("counts", [(20, 3), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)], ids=str)
def test_flags_are_right_in_all_modes(counts: tuple[int, ...], form: Format) -> None:
    assert Layer(counts, flags(form)).found("all") == []
    assert Layer(counts, flags(form, "sm_100a")).found("eager,slow-links") == []


def unlike(form: Format = Format.NONE, sms: tuple[int, ...] = (4, 1, 3)) -> Kernels:
    """Return kernels with flags of different tilings, for devices with different numbers of SMs."""
    tilings = Tiling(threads=128, ctas=8), Tiling(threads=512)
    others = (
        DispatchConfig(format=form, by_flags=True, tiling=tilings[0]),
        CombineRanksConfig(by_flags=True, tiling=tilings[1]),
    )
    return replace(flags(form), others=others, sms=sms)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize(
    ("counts", "modes", "sms"),
    [
        ((20, 20), "eager,reversed", (1, 3)),
        ((20, 3), "quick", (4, 5)),
        ((3, 20, 0, 2), "eager,late-links", (4, 1, 3)),
        ((20, 1, 0, 2, 1, 1, 2, 0), "eager", (4, 1, 3)),
    ],
    ids=str,
)
def test_devices_may_have_other_numbers_of_ctas(
    counts: tuple[int, ...], modes: str, sms: tuple[int, ...], form: Format
) -> None:
    """Other SMs, and kernels with other tilings: each waits for the flags that the others send."""
    assert Layer(counts, replace(flags(form), sms=sms)).found(modes) == []
    assert Layer(counts, unlike(form, sms)).found(modes) == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize(
    ("counts", "modes"),
    [
        ((20, 3), "all"),
        ((3, 20, 0, 2), "all"),
        ((2, 1, 0, 20, 1, 1, 2, 0), "eager,late-links"),
    ],
    ids=str,
)
def test_other_numbers_of_ctas_are_right_in_more_modes(
    counts: tuple[int, ...], modes: str, form: Format
) -> None:
    assert Layer(counts, unlike(form)).found(modes) == []


@pytest.mark.parametrize(
    ("mode", "step"),
    [("lost-device-1", "dispatch"), ("lost-device-1-from-2", "combine_ranks")],
)
def test_a_wait_for_a_flag_comes_to_its_limit(mode: str, step: str) -> None:
    layer = Layer((2, 2), flags(), limit_ms=1)
    layer.found(mode)

    assert rounds.late(layer.states[0]) == rounds.Late(step, 1, 1)


@pytest.mark.sampled(9)
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


@pytest.mark.parametrize("kernels", [Kernels(), flags()], ids=["numbers", "flags"])
def test_rounds_may_overflow(kernels: Kernels) -> None:
    """Four days of calls of 61 layers are that many: flags then counted no CTAs."""
    layer = Layer((40, 40), kernels)
    for state in layer.states:
        state[rounds.DISPATCHED] = state[rounds.COMBINED] = -(2**31)

    assert layer.found("eager,slow-links") == []


def test_ctas_that_take_several_vectors() -> None:
    assert Layer((4, 4), hidden=320).found("eager,reversed") == []


@pytest.mark.parametrize(
    ("mode", "step"),
    [("lost-device-1", "dispatch"), ("lost-device-1-from-2", "combine_ranks")],
)
def test_a_wait_comes_to_its_limit(mode: str, step: str) -> None:
    """Nothing hangs: the state says who did not send what in which round."""
    layer = Layer((2, 2), limit_ms=1)
    layer.found(mode)

    assert rounds.late(layer.states[0]) == rounds.Late(step, 1, 1)


ALL_MISTAKES = [*MISTAKES, *EXPERT_MISTAKES, *RECORD_MISTAKES, *FLAG_MISTAKES]


@pytest.mark.sampled(48)
@pytest.mark.parametrize(("mistake", "op"), cases_of(ALL_MISTAKES), ids=str)
def test_a_mistake_is_found(mistake: Mistake, op: str) -> None:
    found = mistake.found_in(op)

    assert mistake.is_in(found), found


@pytest.mark.nightly
@pytest.mark.parametrize(("mistake", "op", "devices"), cases_on_more(ALL_MISTAKES), ids=str)
def test_a_mistake_is_found_on_more_devices(mistake: Mistake, op: str, devices: int) -> None:
    found = mistake.found_in(op, devices)

    assert mistake.is_in(found), found


def test_one_inbox_for_tokens_and_sums() -> None:
    found = Layer((2, 1), banks=1).found("quick")

    assert any(text.startswith((WRONG, "result")) for text in found), found
