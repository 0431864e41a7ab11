# SPDX-License-Identifier: Apache-2.0
"""The hopper-fp4 suite without a GPU: cases, references, the run on a CPU, report and reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from jitgen import reference
from jitgen.autotune.measure import clock
from jitgen.autotune.measure.clock import Batch, Call
from jitgen.autotune.measure.errors import NoDevice, WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench import cases, processes, runner
from jitgen.bench.cases import DOWN, UP
from jitgen.bench.hopper_fp4 import report as reports
from jitgen.bench.hopper_fp4 import run, sides
from jitgen.bench.hopper_fp4.formats import FORMATS
from jitgen.bench.hopper_fp4.operands import LARGEST_ERROR, Tokens, Weights
from jitgen.bench.hopper_fp4.plain import plain
from jitgen.bench.hopper_fp4.report import Fp4Report, Measured, SideTimes
from jitgen.bench.hopper_fp4.sides import OURS, UNPACKED, Fp8, Own, Side
from jitgen.bench.peers import Unavailable
from jitgen.bench.runner import Ready
from jitgen.config import Layout
from jitgen.config.config import BLayout
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import ConfigError
from tests.bench_report import TINY, times

DECODE = replace(TINY, groups=32, rows_per_group=8, n=4096, k=7168, spread=0.0)
GPU = type("Gpu", (), {"conditions": dict, "look": lambda: None, "words": str})
mxfp4 = partial(plain, form=PrepackedFormat.MXFP4)
TWICE = run.Method(rounds=2)
TWO = tuple(run.Step(case=replace(TINY, rows_per_group=rows)) for rows in (6, 8))


def timed(us: float, size: int = 10**9) -> SideTimes:
    return SideTimes(times=times(us * 0.99, us, us * 1.01), num_bytes=size, error=1.65e-3)


def report() -> Fp4Report:
    sides = {
        "fp8": timed(210, 19 * 10**8),
        "e4m3": timed(120),
        "e4m3 folded": timed(119),
        "bf16": timed(140),
        "marlin": timed(196),
    }
    return Fp4Report(
        conditions={"gpu": "NVIDIA H200"},
        copy_rate=4.2e12,
        found=[
            Measured(
                case=DECODE,
                sides=sides,
                missing={"humming bf16": "RuntimeError: no | kernel"},
                candidates={"e4m3": {"8x256": 118e-6, "32x256": 130e-6}},
            )
        ],
        notes={"marlin": "vLLM's build"},
        absent={"triton_kernels": "not here"},
    )


def test_its_cases() -> None:
    """Every size from one row to prefill; every target's case, with peers where it names one."""
    found = run.load()
    sizes = {(step.case.n, step.case.k) for step in found}

    assert len(found) == len({step.case for step in found}) == 56
    assert {UP, DOWN, reports.GPT_OSS, (2880, 2880), (6144, 7168)} <= sizes
    for n, k in sizes:
        rows = {step.case.rows_per_group for step in found if (step.case.n, step.case.k) == (n, k)}
        assert rows == {1, 8, 16, 32, 64, 128, 4096}
    for target in reports.TARGETS:
        [step] = [
            step
            for step in found
            if (step.case.n, step.case.k, step.case.rows_per_group) == (*target.matrix, target.rows)
        ]
        assert step.has_peers or target.other == "fp8"


def test_only_leaves_steps() -> None:
    assert [str(step) for step in cases.only(run.load(), [" x 8 ", "K7168"])] == [
        "ragged 32 x 8 N4096 K7168",
        "ragged 32 x 8 N6144 K7168",
    ]


def test_bad_cases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    good = {"layout": "ragged", "groups": 2, "rows_per_group": 3, "n": 128, "k": 128}
    for case, message in (
        ({**good, "peers": 1}, "peers must be true or false"),
        ({**good, "k": 144}, "k must be a multiple of 32"),
        ({**good, "layout": "contiguous"}, "layout must be ragged"),
        ({**good, "columns": 2}, "has no field 'columns'"),
        (7, "a case must be an object"),
    ):
        path.write_text(json.dumps({"cases": [case]}))
        with pytest.raises(ConfigError, match=message):
            run.load(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="needs an object with a list 'cases'"):
        run.load(path)


def test_peers_take_part_in_cases_of_ones_own(tmp_path: Path) -> None:
    """They used to be left out of every case that did not ask for them, without a word."""
    path = tmp_path / "cases.json"
    good = {"layout": "ragged", "groups": 2, "rows_per_group": 3, "n": 128, "k": 128}
    path.write_text(json.dumps({"cases": [good, {**good, "peers": False}]}))

    assert [step.has_peers for step in run.load(path)] == [True, False]
    assert {step.has_peers for step in run.load()} == {True, False}


def test_weights_have_the_values_of_their_codes() -> None:
    weights = Weights.random(1, 2, 64, "cpu")
    weights.packed[0, 1, 16:18] = torch.tensor([0x72, 0xF1])
    weights.scale[0, 1, 1] = 129

    assert mxfp4(weights).values()[0, 1, 32:36].tolist() == [4.0, 24.0, 2.0, -24.0]
    assert mxfp4(weights).num_bytes * 8 == weights.packed.numel() * 2 * 4.25


def ready(tokens: Tokens, weights: Weights) -> Ready:
    expected = tokens.product("bf16", tokens.x.float, mxfp4(weights).values)
    return tokens.ready(
        [weights], lambda _, out: lambda: out.copy_(expected), expected, num_bytes=1
    )


@pytest.mark.parametrize("layout", processes.LAYOUTS)
def test_prepacked_weights_are_those_of_the_reference(layout: BLayout) -> None:
    """In every layout and every copy: the scales lie near enough for the folded one, too."""
    weights = Weights.random(2, 72, 160, "cpu")
    found = sides.prepacked_copies(mxfp4(weights), layout)

    assert len({each.values.data_ptr() for each in found}) == 3
    for each in found:
        assert torch.equal(each.weights(), mxfp4(weights).values())


def test_long_calls_have_one_copy() -> None:
    short, long = (
        Tokens(replace(TINY, rows_per_group=rows, n=8, k=32), "cpu") for rows in (8, 1024)
    )

    weights = Weights.random(3, 8, 32, "cpu")
    outs: list[torch.Tensor] = []

    def calls(tokens: Tokens) -> int:
        expected = tokens.product("bf16", tokens.x.float, mxfp4(weights).values)
        made = tokens.ready("abc", lambda _, out: lambda: outs.append(out), expected, num_bytes=0)
        for call in made.calls:
            call()
        return len(made.calls)

    assert [calls(each) for each in (long, short)] == [1, 3]
    assert len({out.data_ptr() for out in outs}) == 4


def test_one_wrong_value_is_seen() -> None:
    case = replace(TINY, n=4096, k=32)
    tokens, weights = Tokens(case, "cpu"), Weights.random(3, 4096, 32, "cpu")
    found = ready(tokens, weights)
    expected = tokens.product("bf16", tokens.x.float, mxfp4(weights).values)
    found.calls[0]()
    assert 1e-3 < found.check() < LARGEST_ERROR / 2
    found.out[2, 77] += expected[2].norm() / 100
    with pytest.raises(WrongResult, match=r"a row is wrong by 0\.0"):
        found.check()
    found.out[2, 77] = float("nan")
    with pytest.raises(WrongResult, match="a row is wrong by nan"):
        found.check()


class Right(Side):
    """A side that computes the reference."""

    note = "slow"

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        return ready(tokens, weights)


class Wrong(Right):
    """A side that writes nothing."""

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        return replace(super().prepare(weights, tokens), calls=(lambda: None,))


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the suite run on tensors in host memory, timed by the host, with sides of the test."""

    def capture(calls: Sequence[Call]) -> Batch:
        return Batch(calls=tuple(calls), replay=lambda: [call() for call in calls])

    def in_turn(batches: Sequence[Batch], *, rounds: int, repetitions: int) -> list[Times]:
        replays = [batch.replay for batch in batches]
        return clock.compete_on_host(replays, repetitions=rounds, warmup=0)

    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    monkeypatch.setattr(Batch, "capture", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for name, value in {
        "OURS": (Right("fp8"), Wrong("e4m3")),
        "require_hopper": lambda: None,
        "gpu": GPU,
    }.items():
        monkeypatch.setattr(run, name, value)
    for name, value in {
        "_DEVICE": "cpu",
        "compete_in_batches": in_turn,
        "copy_rate": lambda: 1e12,
        "gpu": GPU,
    }.items():
        monkeypatch.setattr(runner, name, value)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_run(tmp_path: Path) -> None:
    """Sides that are right are timed, peers in their steps; a second run goes on with the rest."""
    path = tmp_path / "report.json"
    found = Fp4Report()
    seen: list[str] = []

    def save() -> None:
        seen.append(found.launching)
        found.save(path)

    steps = (replace(TWO[0], has_peers=True), TWO[1])
    peers = [Right("marlin")]
    assert list(run.run(found, steps, peers, replace(TWICE, seconds=0.0), save)) == []
    assert list(run.run(found, steps[:1], peers, TWICE, save)) == [steps[0]]
    assert seen == ["fp8", "e4m3", "marlin"]
    assert list(found.found[0].sides) == ["fp8", "marlin"]
    assert found.found[0].missing["e4m3"].startswith("WrongResult: a row is wrong by nan")
    assert len(found.found[0].sides["fp8"].times.seconds) == 2
    assert found.conditions["rounds"] == "2"

    found.launching = "marlin"
    save()
    again = Fp4Report.read(path)
    assert again.launching == "marlin"  # as a process that hung in it would have left it
    assert list(run.run(again, steps, peers, TWICE, lambda: None)) == [steps[1]]
    assert [list(each.sides) for each in again.found] == [["fp8", "marlin"], ["fp8"]]
    assert "marlin" not in again.found[1].missing, "it is absent from all"
    assert "broke the device" in again.absent["marlin"]


@pytest.mark.usefixtures("on_a_cpu")
def test_a_peer_that_is_left_out_is_named() -> None:
    found = Fp4Report()
    peers = [Right("marlin")]
    steps = (replace(TWO[0], has_peers=True), replace(TWO[1], has_peers=False))
    assert list(run.run(found, steps, peers, TWICE, lambda: None)) == [*steps]

    assert "marlin" not in found.found[0].missing
    assert found.found[1].missing["marlin"] == run.LEFT_OUT
    assert any(
        run.LEFT_OUT in " ".join(map(str, row)) for each in found.tables() for row in each.rows
    )


class WithOthers(Right, Own):
    """A side with two more kernels, one of which computes nothing."""

    def others(self, weights: Weights, tokens: Tokens) -> dict[str, Callable[[], Ready]]:
        wrong = Wrong("").prepare(weights, tokens)
        return {"8x256": lambda: ready(tokens, weights), "16x256": lambda: wrong}


@pytest.mark.usefixtures("on_a_cpu")
def test_other_kernels_of_a_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are timed beside the chosen one where they are right, and not where one hung before."""
    monkeypatch.setattr(run, "OURS", (WithOthers("fp8"), WithOthers("bf16")))
    how = replace(TWICE, candidates=True)
    found = Fp4Report()
    [_] = run.run(found, TWO[:1], [], how, lambda: None)
    hung = Fp4Report(launching="bf16 8x256")
    [_] = run.run(hung, TWO[:1], [], how, lambda: None)

    assert [*found.found[0].sides] == ["fp8", "bf16"]
    assert {side: [*each] for side, each in found.found[0].candidates.items()} == {
        "bf16": ["8x256"]
    }
    assert [*found.found[0].missing] == ["bf16 16x256"]
    assert [*hung.absent] == ["bf16 8x256"]
    assert not hung.found[0].candidates


@pytest.mark.parametrize("side", [*OURS, *UNPACKED, *FORMATS], ids=lambda side: side.name)
def test_sides_agree_with_their_references(side: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The public reference, handed what the kernels are, computes what the suite expects: two ways to
    the same numbers. Every kernel that may be chosen is handed the same.
    """
    monkeypatch.setattr("jitgen.bench.hopper_fp4.sides.jitgen.grouped_gemm", reference.grouped_gemm)
    monkeypatch.setenv("JITGEN_ARCH", "sm_90a")
    k = 256 if side.name.startswith("int4_128") else 160
    case = replace(TINY, n=144, k=k)
    weights, tokens = Weights.random(3, 144, k, "cpu"), Tokens(case, "cpu")
    found = side.prepare(weights, tokens)
    (name, other), *_ = side.others(weights, tokens).items()
    last = other()
    for each in (found, last):
        for call in each.calls:
            call()

    assert len(found.calls) == 3
    assert found.check() == last.check() < LARGEST_ERROR / 2
    assert found.kernel != last.kernel
    assert found.kernel.endswith("_sm_90a")
    assert name in str(side.kernels(case)[1].short)
    assert found.num_bytes > 3 * 144 * k * (1 if side.name.startswith("fp8") else 4.25 / 8)


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.nightly
def test_a_real_call() -> None:
    """One of our sides through `grouped_gemm`, with N and K that end within a block."""
    case = replace(TINY, n=144, k=160)
    [side] = [each for each in OURS if each.name == "e4m3x2"]
    found = side.prepare(Weights.random(3, 144, 160, "cpu"), Tokens(case, "cpu"))
    for call in found.calls:
        call()

    assert len(found.calls) == 3
    assert found.check() < LARGEST_ERROR
    assert found.kernel.endswith("_cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_needs_a_hopper() -> None:
    with pytest.raises(NoDevice, match="the hopper-fp4 suite needs a Hopper GPU"):
        next(run.run(Fp4Report(), TWO, [], TWICE, lambda: None))


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report().save(path)

    assert Fp4Report.read(path) == report()


def slow(document: dict[str, object]) -> None:
    document["copy_bytes_per_s"] = "slow"


def timeless(document: dict[str, object]) -> None:
    document["found"][0]["sides"]["fp8"]["seconds"] = []  # type: ignore[index]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda document: document.clear(), "no report of hopper-fp4 of this version"),
        (slow, "the report is damaged: ValueError"),
        (timeless, "times are positive"),
        (lambda document: document.pop("absent"), "the report is damaged: KeyError"),
    ],
)
def test_bad_reports_are_refused(
    tmp_path: Path, damage: Callable[[dict[str, object]], object], message: str
) -> None:
    document = report().to_json()
    damage(document)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))

    with pytest.raises(ConfigError, match=message):
        Fp4Report.read(path)


def test_targets_take_the_best_side() -> None:
    rows = {row.what: row for row in report().targets()}

    fp8 = rows["fp8 over FP4, e4m3 activations, 8 rows, N4096 K7168"]
    assert (fp8.value, fp8.ok) == (pytest.approx(210 / 119), False)
    assert fp8.detail == "best: e4m3 folded"
    bf16 = rows["fp8 over FP4, bf16 activations, 8 rows, N4096 K7168"]
    assert (bf16.value, bf16.budget) == (pytest.approx(1.5), 1.75)
    assert rows["marlin over FP4, bf16 activations, 8 rows, N4096 K7168"].value == pytest.approx(
        1.4
    )
    assert len(rows) == 3


def test_tables() -> None:
    table, others, errors, left_out = report().tables()

    assert table.columns == ("rows", "limit", "fp8", "e4m3", "e4m3 folded", "bf16", "marlin")
    assert table.rows == (
        (
            *("8", "1.90", "210.0 (9,048)", "120.0 (1.75; 8,333)"),
            *("119.0 (1.76; 8,403)", "140.0 (1.50; 7,143)", "196.0 (1.07; 5,102)"),
        ),
    )
    assert others.rows == ((str(DECODE), "e4m3", "8x256 118.0; [chosen 120.0]; 32x256 130.0"),)
    assert errors.rows[0] == ("fp8", "1.65e-03")
    assert left_out.rows == (
        ("triton_kernels", "all", "not here"),
        ("humming bf16", "1", "RuntimeError: no | kernel"),
    )


def test_kernels_for_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "OURS", (Fp8(),))
    found = sides.kernels([DECODE, replace(DECODE, rows_per_group=128), DECODE])

    assert len(found) == 2
    assert all(name.startswith("grouped_gemm_ragged_e4m3_e4m3_block128") for name in found)
    monkeypatch.undo()
    chosen = sides.kernels([DECODE])
    assert len(sides.OURS) == len(chosen)
    assert {*chosen} < {*sides.kernels([DECODE], all_of_them=True)}


def test_a_format_that_a_size_does_not_have() -> None:
    (side,) = (each for each in FORMATS if each.name == "int4_128 e4m3")
    with pytest.raises(Unavailable, match=r"K is a multiple of 128 there \(got 160\)"):
        side.prepare(Weights.random(3, 144, 160, "cpu"), Tokens(replace(TINY, k=160), "cpu"))


def test_kernels_of_other_formats_are_listed_if_asked_for() -> None:
    more = sides.kernels([DECODE], more=FORMATS)

    assert len(more) == len(sides.kernels([DECODE])) + len(FORMATS)
    assert sum("int4" in name for name in more) == 4
    beyond = sides.kernels([replace(DECODE, k=2880)], more=FORMATS)
    assert not any("group128" in name for name in beyond)


def test_sides_have_names_of_their_own() -> None:
    assert OURS[0].name == "fp8"
    every = [side.name for side in (*OURS, *UNPACKED, *FORMATS)]
    assert len({*every}) == len(every)
    assert {*reports.E4M3, *reports.BF16} <= {side.name for side in OURS}
    assert Layout.RAGGED in {step.case.layout for step in TWO}
