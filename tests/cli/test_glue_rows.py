# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench glue`: rows of tokens to their experts and back, and all steps together."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from jitgen import plans
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import glue, runner
from jitgen.bench.glue import combine, permute_quantize, together
from jitgen.config import Arch
from jitgen.runtime.session import select
from jitgen.selection.choice import bucket
from tests import needs
from tests.cli.conftest import Jitgen
from tests.targets import EACH

MODULES = ("combine", "permute_quantize", "activation_quantize", "together")


def no_compiler(*_: Any) -> Any:
    raise RuntimeError("no compiler here")


@needs.compiler
@pytest.mark.nightly
@pytest.mark.parametrize("name", MODULES)
def test_bench(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every case once on this machine's CPU, without torch's compiler: its time is not ours."""
    monkeypatch.setattr(runner, "has_gpu", lambda: False)
    monkeypatch.setattr(glue, "operations", lambda: (name,))
    monkeypatch.setattr(glue, "compiled", lambda _: no_compiler)
    module = importlib.import_module(f"jitgen.bench.glue.{name}")
    cases = [str(case) for case in module.cases(Arch.CPU)]
    done = jitgen("bench", "glue", "--json")
    rows = done.document["rows"]

    assert done.code == 0, done.err
    assert sorted(row["what"] for row in rows) == sorted(
        f"{side}: {case}" for case in cases for side in ("copy", "jitgen", "torch")
    )
    assert all(row["unit"] == "GB/s" and row["value"] > 0 for row in rows)


@pytest.mark.parametrize("arch", EACH)
def test_the_shipped_plan_has_what_the_bench_runs(arch: Arch) -> None:
    """A machine without the compiler can run it."""
    chosen = set(plans.configs(plans.load("glue"), arch))
    for module in (combine, permute_quantize):
        wanted = {select(bucket(case.problem, arch), arch).config for case in module.cases(arch)}

        assert wanted <= chosen


def test_what_a_gpu_is_asked() -> None:
    """The budgets stand at 4096 tokens, and at 64 for all together."""
    modules = (combine, permute_quantize, together)
    found = {str(case): case.budgets for module in modules for case in module.cases(Arch.SM_90A)}

    assert {name for name, budgets in found.items() if budgets} == {
        "combine top 8, shared, 4096 tokens N7168",
        "permute_quantize block128, 4096 tokens K7168",
        "all four, 64 tokens K7168 I2048",
    }


def test_a_wrong_result_stops_it() -> None:
    """Neither a value, nor a scale, nor a sum may be far off."""
    right = (torch.ones(4, 128).to(torch.float8_e4m3fn), torch.ones(4, 1))
    permute_quantize.check(right, expected=right)
    for place in (0, 1):
        wrong = [each.float().clone() for each in right]
        wrong[place][2, 0] = 1.5
        with pytest.raises(WrongResult, match="differs"):
            permute_quantize.check(wrong, expected=right)
    sums = torch.ones(4, 8).bfloat16()
    combine.check(sums, expected=sums)
    with pytest.raises(WrongResult, match=r"differ by 0\.5"):
        combine.check(sums * 1.5, expected=sums)
