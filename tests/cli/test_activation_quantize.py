# SPDX-License-Identifier: Apache-2.0
"""Every command that takes kernels or problems, with those of `activation_quantize`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jitgen import plans, select
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench import runner
from jitgen.bench import silu as suite
from jitgen.bench.protocol import Row
from jitgen.cache import Store
from jitgen.compile import workers
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.config import Arch, Config
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.config.format import Format
from jitgen.ops.activation_quantize import samples
from jitgen.ops.activation_quantize.samples import Sizes
from jitgen.targets.legality import check
from tests.cli.conftest import Jitgen
from tests.targets import EACH

OP = ("--op", "activation_quantize")
SIZES = ("-g", "8", "-m", "512", "-n", "256")
CPU = "activation_quantize_ragged_none_swiglu_cpu"
GPU = "activation_quantize_ragged_block128_swiglu_sm_90a"
CASE: Any = Config.parse(CPU)[0]
PLAN = """
[[problems]]
op = "activation_quantize"
layout = "ragged"
groups = 8
rows_per_group = 4
n = 256
scale_granularity = ["none", "row"]
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(PLAN, encoding="utf-8")
    return str(path)


def test_configs(jitgen: Jitgen) -> None:
    words = ("--layout", "ragged", "--set", "power_of_two=false")
    done = jitgen("configs", *OP, "--arch", "cpu", *words)
    names = done.out.split()

    assert len(names) > 20
    for name in names:
        config, arch = Config.parse(name)
        assert (config.op, config.parameters()["layout"], arch) == (OP[1], "ragged", Arch.CPU)
        assert not config.parameters()["power_of_two"]
        assert check(config, arch)


def test_select(jitgen: Jitgen) -> None:
    words = ("select", *OP, *SIZES, "--scales", "row", "--arch", "sm_90a")
    document = jitgen(*words, "--json").document

    assert document["name"].startswith("activation_quantize_ragged_row_swiglu_")
    assert document["config"]["scale_granularity"] == "row"
    assert document["candidates"][0]["name"] == document["name"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("select", "--op", "silu", *SIZES),
            "'silu' is not known; allowed: activation_backward, activation_quantize, add_lora",
        ),
        (
            ("select", *OP, *SIZES, "-k", "64"),
            "has no field 'k': it belongs to add_lora and dispatch and grouped_gemm and",
        ),
        (
            ("select", *SIZES, "-k", "64", "--set", "activation=swiglu"),
            "has no field 'activation': it belongs to activation_backward and activation_quantize",
        ),
        (
            ("select", *OP, *SIZES, "--set", "colour=red"),
            "no field 'colour'; activation_quantize",
        ),
        (("select", *OP, "-g", "8"), "activation_quantize needs m, n"),
        (("select", *OP, "-g", "8", "-m", "8", "-n", "12", "--arch", "sm_90a"), "a multiple of 8"),
        (("select", *SIZES, "-k", "64", "--scales", "none"), "scale_granularity must be one of"),
        (("configs", *OP, "--set", "tile_m=64"), "activation_quantize has no parameter 'tile_m'"),
        (("tune", "swiglu", "--arch", "sm_90a"), "only grouped_gemm can be measured"),
        (("verify", GPU, "--problem", "1:2:3:4"), "G:M:I"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:2]),
)
def test_mistakes(jitgen: Jitgen, words: tuple[str, ...], said: str) -> None:
    done = jitgen(*words)

    assert done.code == 2
    assert said in done.err
    assert not done.out


def test_show(jitgen: Jitgen) -> None:
    shown, source = jitgen("show", GPU, "--json").document, jitgen("show", GPU, "--source").out

    assert shown["config"]["tiling"]["rows"] == 4
    assert shown["derived"]["registers"] == 72
    assert shown["entry"] is None
    assert "def activation_quantize(x, groups, q, scale, num_sms, stream):" in source


def test_a_plan_is_prewarmed(jitgen: Jitgen, plan: str) -> None:
    """Both kernels are compiled once, then found by name and by key."""
    dry = jitgen("prewarm", plan, "--arch", "cpu", "--check")
    assert dry.code == 3
    done = jitgen("prewarm", plan, "--arch", "cpu", "--jobs", "1", "--json")
    assert done.code == 0, done.err
    kernels = done.document["kernels"]
    again = jitgen("prewarm", plan, "--config", CPU, "--arch", "cpu", "--check")

    assert {kernel["state"] for kernel in kernels} == {"compiled"}
    assert [kernel["name"] for kernel in kernels] == [CPU, CPU.replace("none", "row")]
    assert again.code == 0
    assert jitgen("show", kernels[0]["key"][:8], "--json").document["name"] == CPU
    assert jitgen("cache", "explain", CPU, "--json").document["state"] == "hit"
    assert {entry.name for entry in Store.open().entries()} == {each["name"] for each in kernels}


def verified(_function: str, tasks: list[Any], **_: Any) -> Iterator[Outcome]:
    """Stand for the worker processes: every kernel is right."""
    for index, task in enumerate(tasks):
        sizes = Sizes(rows=(3, 0), n=264, num_sms=1)
        run = {"mode": "eager", "seconds": 0.5, "cpu_seconds": 0.5, "findings": []}
        trial = {
            "problem": str(sizes),
            "sizes": asdict(sizes),
            "right": True,
            "values": "random",
            "places": [],
            "wrong": 0,
            "frobenius": 0.0,
            "largest": 0.0,
            "fault": None,
            "runs": [{**run, "counts": {"loads": 12}, "warp_instructions": {"math": 9}}],
        }
        result = {"right": True, "gaps": [], "coverage": []}
        yield Outcome(
            task=task,
            index=index,
            kind=OutcomeKind.OK,
            result={**result, "trials": [trial]},
            seconds=1.0,
        )


def test_verify(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel with its counts and sizes, and a plan, which stands for what it chooses."""
    monkeypatch.setattr(workers, "run", verified)
    done, every = jitgen("verify", GPU), jitgen("verify", "swiglu", "--arch", "sm_90a", "--json")
    wanted = [c.name("sm_90a") for c in plans.configs(plans.load("swiglu"), Arch.SM_90A)]

    assert done.code == 0
    assert "rows 3 + 0, I 264, 1 SMs" in done.out
    assert [kernel["name"] for kernel in every.document["kernels"]] == wanted


@pytest.mark.parametrize("arch", EACH)
def test_the_shipped_plan_has_what_the_bench_runs(arch: Arch) -> None:
    """A machine without the compiler can run it; contiguous rows come with some padding."""
    chosen = set(plans.configs(plans.load("swiglu"), arch))
    for case in suite.cases(arch):
        for extra in (0, 64):
            problem = replace(case.problem, m=case.problem.m + extra)
            assert select(problem, arch).config in chosen
    of_dispatch = ActivationQuantizeProblem(layout="ragged", groups=2, m=32, n=128)
    assert select(of_dispatch, arch).config in chosen


def test_bench(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small case on this machine's CPU, without torch's compiler: its time is not ours."""

    def no_compiler(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(runner, "has_gpu", lambda: False)
    monkeypatch.setattr(suite, "_inductor", no_compiler)
    cases = [suite.case(CASE, 2, 64)]
    monkeypatch.setattr(suite, "rows", replace(suite.SUITE, cases=lambda _: cases).rows)
    done = jitgen("bench", "silu", "--json")
    rows = done.document["rows"]

    assert done.code == 0, done.err
    assert [row["what"] for row in rows] == [
        f"{side}: ragged none 8 x 2 I64" for side in ("copy", "jitgen")
    ]
    assert all(row["unit"] == "GB/s" and row["value"] > 0 for row in rows)
    assert f"{CPU}; without inductor: RuntimeError: no compiler here" in rows[1]["detail"]
    assert "cores" in done.document["conditions"]


def test_bench_refuses_to_time_what_is_wrong(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "has_gpu", lambda: False)
    cases = [suite.case(CASE, 2, 64)]
    monkeypatch.setattr(suite, "rows", replace(suite.SUITE, cases=lambda _: cases).rows)
    monkeypatch.setattr(suite.Solved, "solve", lambda *_: 3)
    done = jitgen("bench", "silu")

    assert (done.code, done.out) == (1, "")
    assert "error: the kernel for ragged none 8 x 2 I64 gives 3 wrong values" in done.err


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize(
    ("scales", "power_of_two"),
    [("block128", False), ("block128", True), ("row", False), ("row", True), ("tensor", False)],
)
def test_scales_of_inductor_are_compared(
    scales: str, power_of_two: bool, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only q was, which is right beside a wrong scale, and differs beside one that is rounded."""

    def compiled(plain: Any, *, dynamic: bool) -> Any:
        def call(x: Any) -> Any:
            q, scale = plain(x)
            return (q, scale) if is_right else (q, scale * 2)

        return call

    monkeypatch.setitem(torch.__dict__, "_dynamo", SimpleNamespace(reset=lambda: None))
    monkeypatch.setattr(torch, "compile", compiled)
    config = replace(CASE, scale_granularity=Format(scales), power_of_two=power_of_two)
    solved = samples.make(config, Sizes(rows=(3, 2), n=200), is_exact=False)
    ready = suite._inductor(solved, config)
    if is_right:
        ready.check()
        return
    with pytest.raises(WrongResult):
        ready.check()


def test_budgets() -> None:
    """At least 90 % of the copy's rate, and no slower than inductor."""
    case = next(each for each in suite.cases(Arch.SM_90A) if each.budgets)
    seconds = {"copy": 0.8, "jitgen": 1.0, "inductor": 1.5}
    times = {name: Times(seconds=(each,)) for name, each in seconds.items()}
    rows: list[Row] = list(suite.SUITE.compared(case, times))

    assert str(case) == "ragged block128 8 x 4096 I2048"
    assert [(row.ok, row.budget) for row in rows] == [(False, 0.9), (True, 1.0)]
