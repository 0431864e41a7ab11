# SPDX-License-Identifier: Apache-2.0
"""Processes that share a layer, each with its experts: as one process with all of them."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitgen
from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksProblem
from jitgen.config.dispatch import DispatchConfig, DispatchProblem
from jitgen.config.format import Format
from jitgen.config.permute_quantize import Walk
from jitgen.errors import InputError
from jitgen.ops.dispatch.call import dispatch
from jitgen.ops.dispatch.launch import launch_for
from jitgen.ops.dispatch.rounds import Link, new_state
from jitgen.parallel import connect, share
from jitgen.parallel.wire import chosen_flags
from jitgen.runtime.session import current
from tests import documents, needs, ranks, ranks_micro
from tests.gpu import ranks_kills, ranks_models
from tests.moe_cases import make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]


@pytest.mark.nightly
@pytest.mark.parametrize(("form", "number"), [("block128", 2), ("bf16", 4), ("row", 3)])
def test_they_give_what_one_gives(form: str, number: int, tmp_path: Path) -> None:
    """
    By shared memory and by collectives, for different numbers of tokens, none included, and more
    than the windows are for.
    """
    ranks.run(ranks.layers, number, tmp_path, form)


def test_two_processes_share_a_layer_in_every_way(tmp_path: Path) -> None:
    """
    It gives what one process gives, and invariant layers its bits. Windows and collectives give the
    same bits; `jitgen.moe` does as a layer does; experts move while the layer serves; tokens of
    vLLM and of SGLang travel; micro-batches have the bits of calls without them; a late rank is
    masked, also in the middle of micro-batches, and comes back, or is named. What is wrong is
    refused, by every rank before it sends anything.
    """
    ranks.run(ranks.several, 2, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["bf16", "block128"])
def test_micro_batches_of_four_ranks_have_the_bits_of_calls_without_them(
    form: str, tmp_path: Path
) -> None:
    ranks.run(ranks_micro.bits, 4, tmp_path, form)


@pytest.mark.nightly
def test_three_mask_one_that_is_late_in_one_micro_batch(tmp_path: Path) -> None:
    ranks.run(ranks_micro.masking, 3, tmp_path)


@pytest.mark.nightly
def test_experts_move_between_four_ranks_while_the_layer_serves(tmp_path: Path) -> None:
    ranks.run(ranks.moves, 4, tmp_path, "bf16_bias", "exact1_row", "int4_wide1")


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_torch_compile_has_a_layer_of_ranks_as_one_operation(number: int, tmp_path: Path) -> None:
    ranks.run(ranks.traced, number, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 4])
def test_tokens_that_are_quantised_before_they_are_sent_change_no_bit(
    number: int, tmp_path: Path
) -> None:
    ranks.run(ranks.quantised, number, tmp_path, "block128", "row", "exact1_row")


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["block128", "row"])
def test_nor_do_they_on_an_emulated_gpu(form: str, tmp_path: Path) -> None:
    ranks.run(ranks.emulated, 1, tmp_path, form)


@pytest.mark.nightly
@pytest.mark.parametrize(("form", "number"), [("block128", 4), ("bf16", 3)])
def test_invariant_bits_are_those_of_one_rank(form: str, number: int, tmp_path: Path) -> None:
    """They depend on neither the number of ranks, the rank of a token nor the tokens beside it."""
    ranks.run(ranks.invariant, number, tmp_path, form)


@pytest.mark.nightly
def test_a_late_rank_is_masked_and_comes_back(tmp_path: Path) -> None:
    ranks.run(ranks.masking, 3, tmp_path)


@pytest.mark.nightly
def test_others_go_on_without_a_rank_that_died(tmp_path: Path) -> None:
    ranks.run(ranks.dying, 3, tmp_path, str(tmp_path))

    assert sorted(each.name for each in tmp_path.glob("done-*")) == ["done-0", "done-1"]


@pytest.mark.nightly
def test_killed_processes_are_masked_and_new_ones_take_their_places() -> None:
    asked = Namespace(device="cpu", ranks=3, seconds=15.0, kill_every=4.0, limit=300.0)

    assert ranks_kills.run(asked) == []


@pytest.mark.nightly
def test_eight_ranks_run_the_layers_of_models() -> None:
    asked = {"models": ["tiny"], "tokens": [2], "flags_from": None, "device": "cpu"}
    ranks_models.run(Namespace(ranks=8, parts=["right", "invariant", "wire", "layer"], **asked))


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_page_shows_what_two_ranks_do(number: int, tmp_path: Path) -> None:
    snippet = documents.blocks("docs/expert-parallel.md", "python")[number]
    script = tmp_path / "layer.py"
    script.write_text(snippet, encoding="utf-8")
    command = (*(sys.executable, "-m", "torch.distributed.run"), "--standalone")
    subprocess.run([*command, "--nproc-per-node", "2", str(script)], check=True, timeout=240)


def test_rows_that_exchanges_read_beside_products_have_memory_of_their_own(tmp_path: Path) -> None:
    ranks.run(ranks_micro.memory_of_rows, 1, tmp_path)


def test_kernels_of_an_old_plan_are_missed_by_name(tmp_path: Path) -> None:
    """A plan for ranks that send bfloat16 does not let others send it: they say what is missing."""
    ranks.run(ranks.planned, 1, tmp_path, str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("given", "max_tokens", "possible", "chosen"),
    [
        (None, 127, True, None),
        (None, 128, True, 128),
        (None, 4096, True, 128),
        (None, 4096, False, None),
        (0, 4096, True, None),
        (64, 4096, True, 64),
        (64, 16, True, 64),
    ],
)
def test_ranks_choose_flags_by_themselves(
    given: int | None, max_tokens: int, possible: bool, chosen: int | None
) -> None:
    assert chosen_flags(given, max_tokens, possible=possible) == chosen


def test_windows_have_flags_for_many_tokens(tmp_path: Path) -> None:
    ranks.run(ranks.by_flags, 1, tmp_path)


def test_shares_have_every_expert_once() -> None:
    for experts in (1, 7, 8, 256):
        for number in range(1, min(8, experts) + 1):
            parts = [share(experts, rank, number) for rank in range(number)]
            every = [first + i for first, count in parts for i in range(count)]

            assert every == [*range(experts)]
            assert max(count for _, count in parts) - min(count for _, count in parts) <= 1


@pytest.mark.parametrize(("experts", "rank", "number"), [(4, 5, 2), (4, -1, 2), (2, 0, 3)])
def test_a_rank_that_is_not_there_has_no_share(experts: int, rank: int, number: int) -> None:
    with pytest.raises(InputError, match=r"^ranks?: must be"):
        share(experts, rank, number)


def test_ranks_are_connected_by_a_group() -> None:
    """None is what torch's group.WORLD is before init_process_group()."""
    with pytest.raises(InputError, match=r"^group: must be a group of torch.distributed"):
        connect(None, hidden=64, top_k=2, max_tokens=4, device="cpu")  # type: ignore[arg-type]


class Two:
    """What connects two ranks, of which a plan needs the number alone."""

    group_name, rank, ranks, max_tokens, can_mask = "", 0, 2, 16, False
    micro_batches, stream = 1, None
    quantises = False
    flags_from: int | None = None

    def dispatch(self, *_: torch.Tensor) -> None:
        """Not called."""

    combine = check = dispatch


def test_a_plan_has_the_kernels_between_ranks() -> None:
    case = make("block128", tokens=1)
    mine = ranks.part_of(case, 0, 2)
    layer = jitgen.MoELayer(case.config, mine, max_tokens=16, group=Two())  # type: ignore[arg-type]
    names = [config.name("sm_90a") for config in layer.configs("sm_90a")]
    sweeps = [
        each
        for each in layer.plan(arch="sm_90a").sweeps
        if isinstance(each.problem, DispatchProblem)
    ]

    assert {"dispatch_bf16_sm_90a", "combine_ranks_bf16_sm_90a"} <= {*names}
    assert [each.problem.experts for each in sweeps] == [0, mine.groups]
    for sweep in sweeps:
        assert (sweep.problem.ranks, sweep.min_rows, sweep.max_rows) == (2, 1, 16)
    assert layer.workspace.max_tokens == 32  # type: ignore[union-attr]


def test_a_plan_has_tokens_of_all_micro_batches_that_the_wire_is_for() -> None:
    case, wire = make("block128", tokens=1), Two()
    wire.quantises, wire.micro_batches = True, 3
    mine = ranks.part_of(case, 0, 2)
    few = replace(case.config, chunk_tokens=1)  # one token of each rank in a pass nevertheless
    for config, rows in ((case.config, 12), (few, 2)):
        layer = jitgen.MoELayer(config, mine, max_tokens=4, group=wire)  # type: ignore[arg-type]
        most = {
            each.problem.op: each.max_rows
            for each in layer.plan(arch="sm_90a").sweeps
            if isinstance(each.problem, DispatchProblem)
            or getattr(each.problem, "walk", None) is Walk.COPY
        }

        assert most == {"dispatch": 6, "permute_quantize": rows}


@pytest.mark.parametrize("by_flags", [False, True])
@pytest.mark.parametrize("kind", [DispatchProblem, CombineRanksProblem])
def test_kernels_have_neighbours_that_serve_while_they_are_compiled(
    kind: Any, by_flags: bool
) -> None:
    """With flags, too: each says how many CTAs its rank's kernel has."""
    neighbours: list[int] = []

    def entry(_: object, config: Any, others: tuple[Any, ...]) -> tuple[Any, Any]:
        neighbours.append(len(others))
        return (lambda: None), config

    gpu: Any = SimpleNamespace(arch=Arch.SM_90A, tail=(132,), entry=entry)
    sizes = {"k" if kind is DispatchProblem else "n": 7168}
    problem = kind(m=2, ranks=2, by_flags=by_flags, **sizes)
    launch_for(current.get(), gpu, problem, None, "x")

    assert neighbours[0] > 0


@pytest.mark.parametrize("form", ["block128", "row", "bf16"])
def test_a_plan_has_the_kernels_of_tokens_that_are_quantised_first(form: str) -> None:
    case, wire = make(form, tokens=1), Two()
    wire.quantises = True
    mine = ranks.part_of(case, 0, 2)
    layer = jitgen.MoELayer(case.config, mine, max_tokens=16, group=wire)  # type: ignore[arg-type]
    names = {config.name("sm_90a") for config in layer.configs("sm_90a")}
    copies = [
        each.max_rows
        for each in layer.plan(arch="sm_90a").sweeps
        if getattr(each.problem, "walk", None) is Walk.COPY
    ]

    assert f"dispatch_bf16{f'_{form}' * (form != 'bf16')}_sm_90a" in names
    assert copies == [32] * (form != "bf16")


def rooms_of(plan: jitgen.Plan) -> set[tuple[str, bool, int, int]]:
    """
    Return the tokens of a rank that a plan has kernels between ranks for, also with flags; those
    that sort are for few tokens in addition.
    """
    return {
        (each.problem.op, each.problem.by_flags, each.min_rows, each.max_rows)
        for each in plan.sweeps
        if hasattr(each.problem, "by_flags") and not getattr(each.problem, "sorts", False)
    }


def of_both(*rooms: tuple[bool, int, int]) -> set[tuple[str, bool, int, int]]:
    """Return `rooms` of both operations between ranks."""
    return {(op, *each) for op in ("dispatch", "combine_ranks") for each in rooms}


def test_a_plan_has_the_kernels_of_many_tokens_by_flags() -> None:
    case, wire = make("block128", tokens=1), Two()
    wire.quantises, wire.flags_from = True, 5
    mine = ranks.part_of(case, 0, 2)
    layer = jitgen.MoELayer(case.config, mine, max_tokens=16, group=wire)  # type: ignore[arg-type]

    assert rooms_of(layer.plan(arch="sm_90a")) == of_both((False, 1, 4), (True, 5, 16))


@pytest.mark.parametrize(
    ("flags_from", "rooms"),
    [
        (None, [(False, 1, 256), (True, 128, 256)]),
        (0, [(False, 1, 256)]),
        (64, [(False, 1, 63), (True, 64, 256)]),
        (257, [(False, 1, 256)]),
    ],
)
def test_a_plan_of_a_layer_without_a_wire_has_flags(
    flags_from: int | None, rooms: list[tuple[bool, int, int]]
) -> None:
    case = make("block128", tokens=1)
    layer = jitgen.MoELayer(case.config, case.weights)
    plan = layer.plan(256, "sm_90a", num_ranks=2, flags_from=flags_from)

    assert rooms_of(plan) == of_both(*rooms)


def test_flags_are_planned_only_where_there_are_some() -> None:
    case = make("block128", tokens=1)
    invariant = replace(case.config, numerics="invariant")
    for config, arch, why in (
        (case.config, "cpu", "0 or None on cpu"),
        (invariant, "sm_90a", "0 or None with late='mask' or invariant"),
    ):
        layer = jitgen.MoELayer(config, case.weights)
        assert rooms_of(layer.plan(256, arch, num_ranks=2)) == of_both((False, 1, 256))
        with pytest.raises(InputError, match=f"flags_from: must be {why}"):
            layer.plan(256, arch, num_ranks=2, flags_from=64)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (
            {"columns": 24, "form": Format.ROW},
            "^x: must have a multiple of 16 columns, sent as row",
        ),
        ({"config": DispatchConfig(format=Format.ROW)}, "^config: must have format=block128, as"),
        ({"room": 4}, "^room: must be at most 3, which the inbox is for"),
    ],
    ids=["columns", "config", "room"],
)
def test_tokens_that_cannot_be_sent_quantised_are_refused(
    options: dict[str, Any], pattern: str
) -> None:
    x = torch.zeros(2, options.pop("columns", 256), dtype=torch.bfloat16)
    inbox = torch.zeros(1, 3 * (256 // 8 + 2 + 1), 4, dtype=torch.int32)
    addresses = torch.tensor([inbox.data_ptr()])
    link = Link(inbox, addresses, new_state(0, 1000, "cpu"))
    given = {"room": 2, "form": Format.BLOCK128} | options
    with pytest.raises(InputError, match=pattern):
        dispatch(x, torch.zeros(2, 1).int(), torch.zeros(2, 1), link, **given)


def test_a_plan_of_invariant_ranks_has_kernels_for_rows_of_experts() -> None:
    case = make("bf16", tokens=1)
    layer = jitgen.MoELayer(replace(case.config, numerics="invariant"), case.weights)
    problems = [each.problem for each in layer.plan(8, "sm_90a", num_ranks=2).sweeps]
    sums = [each for each in problems if isinstance(each, CombineRanksProblem)]

    assert [each.of_experts for each in sums] == [True] * 3


def test_a_plan_of_ranks_has_the_sums_of_collectives_which_do_not_start_early() -> None:
    case = make("bf16", tokens=1)
    sweeps = jitgen.MoELayer(case.config, case.weights).plan(8, "sm_90a", num_ranks=2).sweeps
    found = [each for each in sweeps if each.problem.op == "combine"]

    assert [(each.is_early, each.min_rows, each.max_rows) for each in found] == [(False, 1, 16)] * 3


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_after_its_plan_was_prewarmed_a_layer_of_ranks_compiles_nothing(
    number: int, tmp_path: Path
) -> None:
    case, cache = make("bf16", tokens=1), str(tmp_path / "cache")
    config = replace(case.config, local_experts=share(case.config.experts, 0, number)[1])
    layer = jitgen.MoELayer(config, ranks.part_of(case, 0, number))
    plan = layer.plan(ranks.MOST, "cpu", num_ranks=number)
    with jitgen.settings.scope(cache_dir=cache):
        jitgen.prewarm(plan, arch="cpu")

    ranks.run(ranks.warm, number, tmp_path, cache)
