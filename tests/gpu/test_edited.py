# SPDX-License-Identifier: Apache-2.0
"""An edited kernel on the GPU: checked and timed beside the original, called, and captured."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

import jitgen
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.kernel import Contender, attempt
from jitgen.codegen.render import render
from jitgen.config import Config
from jitgen.errors import CaptureMiss
from jitgen.runtime.override import Override
from jitgen.runtime.spec import spec_of
from tests import needs
from tests.gpu.configs import ARCH, menu

pytestmark = [needs.compiler, needs.linker]

CONFIG = next(iter(menu(ARCH).values()))


@pytest.fixture
def mine(tmp_path: Path) -> Override:
    """The kernel with a remark, which is another text."""
    return _edited(CONFIG, tmp_path)


def _edited(config: Config, folder: Path) -> Override:
    path = folder / "my.py"
    path.write_text(f"{render(config, ARCH).text}\n# mine: {folder.name}\n", encoding="utf-8")
    return jitgen.override(path)


def test_beside_the_original(mine: Override) -> None:
    contenders = [
        Contender(title="mine", spec=mine.spec),
        Contender(title="original", spec=spec_of(CONFIG, ARCH)),
    ]
    found = attempt(contenders, "4:300:512:1024", time_limit_s=120.0, has_edges=True)

    assert found.is_right, [check.to_json() for check in found.checks]
    assert [each["title"] for each in found.times["kernels"]] == ["mine", "original"]
    assert all(each["time_us"] > 0 for each in found.times["kernels"])


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_calls_and_graphs(mine: Override) -> None:
    """A capture wants it loaded; then a graph holds it."""
    problem = jitgen.GroupedGemmProblem(
        layout=CONFIG.layout,
        groups=4,
        m=512,
        n=256,
        k=512,
        out_dtype=CONFIG.operands.out_dtype,
    )
    workload = Workload.random(problem)
    call = partial(workload.call, config=mine)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureMiss, match="as edited in"), torch.cuda.graph(graph):
        call()
    call()
    workload.check("an edited kernel's result")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    workload.out.zero_()
    graph.replay()

    workload.check("the result of a replay")
