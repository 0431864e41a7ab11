# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench glue`, and what commands say of `route`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jitgen import plans
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import glue, runner
from jitgen.bench.glue import route
from jitgen.config import Arch
from jitgen.config.route import RouteConfig
from jitgen.runtime.session import select
from jitgen.selection.choice import bucket
from tests.cli.conftest import Jitgen
from tests.targets import EACH


def no_compiler(*_: Any) -> Any:
    raise RuntimeError("no compiler here")


def test_bench(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two routers on this machine's CPU, without torch's compiler: its time is not ours."""
    first, *_, last = route.cases(Arch.CPU)
    monkeypatch.setattr(runner, "has_gpu", lambda: False)
    monkeypatch.setattr(glue, "operations", lambda: ("route",))
    monkeypatch.setattr(glue, "compiled", lambda _: no_compiler)
    monkeypatch.setattr(route, "cases", lambda _: [first, last])
    cases = [str(case) for case in (first, last)]
    done = jitgen("bench", "glue", "--json")
    rows = done.document["rows"]

    assert done.code == 0, done.err
    assert sorted(row["what"] for row in rows) == sorted(
        f"{side}: {case}" for case in cases for side in ("copy", "jitgen", "torch")
    )
    assert all(row["unit"] == "GB/s" and row["value"] > 0 for row in rows)
    of_ours = [row["detail"] for row in rows if row["what"].startswith("jitgen")]
    assert all("without inductor: RuntimeError: no compiler here" in each for each in of_ours)
    assert "route_sigmoid_f32_e256_bias_grouped_cpu" in of_ours[0]


def test_a_wrong_result_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed before it is right, neither ours nor torch's."""
    case = next(route.cases(Arch.CPU))
    operands = route.operands(case.problem, "cpu", 0, top_groups=4, scale=2.5)
    found = operands.ours()
    operands.check(found)
    first, *_ = found.offs.tolist()
    found.offs[0] = first + 1
    with pytest.raises(WrongResult, match="offs differs"):
        operands.check(found)
    with pytest.raises(WrongResult, match="weights differ"):
        operands.check(found._replace(topk_weights=found.topk_weights * 1.1))


def kernels(arch: Arch) -> Iterator[RouteConfig]:
    for case in route.cases(arch):
        yield select(bucket(case.problem, arch), arch).config


@pytest.mark.parametrize("arch", EACH)
def test_the_shipped_plan_has_what_the_bench_runs(arch: Arch) -> None:
    """A machine without the compiler can run it."""
    chosen = set(plans.configs(plans.load("route"), arch))

    assert set(kernels(arch)) <= chosen


def test_select(jitgen: Jitgen) -> None:
    sizes = ("--set", "experts=256", "--set", "top_k=8", "--set", "scoring=sigmoid")
    done = jitgen("select", "--op", "route", "--arch", "sm_90a", "--m", "4096", *sizes, "--json")

    assert done.code == 0, done.err
    assert done.document["config"]["op"] == "route"
    assert done.document["config"]["tiling"]["is_spread"]
