# SPDX-License-Identifier: Apache-2.0
"""torch.compile on the GPU at hand: its CUDA graphs hold kernels of jitgen's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.formats.atoms import BYTES, by_row
from jitgen.formats.protocol import Rows
from jitgen.settings import settings
from tests import needs
from tests.traced import EVERY, GROUPS, OTHER_ROWS, QUANTISERS, ROWS, K, N, Traced, ends, normal

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
]


@pytest.fixture(autouse=True)
def _afresh(prewarmed: None) -> Iterator[None]:
    """Kernels of such small problems are not brought here."""
    torch._dynamo.reset()
    with settings.scope(on_miss="compile"):
        yield


def parts(result: Tensor | tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
    """Return the tensors of a result; of scales in atoms those of rows: the rest is padding."""
    found = result if isinstance(result, tuple) else (result,)
    lie = Rows((rows,), GROUPS, ends(rows).to(found[0].device))
    return tuple(by_row(x, lie, 4 * x.shape[1]) if is_atoms(x) else x for x in found)


def is_atoms(x: Tensor) -> bool:
    return x.dtype is torch.uint8 and x.dim() == 3 and x.shape[2] == BYTES


def on_gpu(traced: Traced, rows: int) -> tuple[Tensor, ...]:
    return tuple(x.cuda() for x in traced.tensors(rows))


def one_step_apart(x: Tensor, y: Tensor) -> bool:
    """
    Inductor's quotients of float32 are not the nearest ones, where torch's own operations divide:
    scales may differ in their last bit, and values that lie between two codes may take the other.
    """
    step = {torch.float8_e4m3fn: 1 / 8, torch.bfloat16: 1 / 128}.get(x.dtype, 1e-6)
    return torch.allclose(x.float(), y.float(), rtol=step, atol=0)


@pytest.mark.parametrize("traced", EVERY, ids=str)
def test_less_overhead(traced: Traced) -> None:
    """Warmed up, captured and replayed, with the values of an eager call each time."""
    same = one_step_apart if traced in QUANTISERS else torch.equal
    compiled = torch.compile(traced.call, fullgraph=True, mode="reduce-overhead")
    for rows in (ROWS, ROWS, ROWS, *OTHER_ROWS):
        expected = parts(traced.call(*on_gpu(traced, rows)), rows)
        torch.compiler.cudagraph_mark_step_begin()
        found = [x.clone() for x in parts(compiled(*on_gpu(traced, rows)), rows)]

        assert all(same(x, y) for x, y in zip(found, expected, strict=True))


def test_a_graphs_memory_is_its_own() -> None:
    """
    Scales of one that operands without any get used to be made while torch warmed up, in the pool
    of the graph that followed, and torch refuses what it finds there and did not give out.
    """
    offs = ends(ROWS).cuda()
    layers = [normal(i, GROUPS, N, K).cuda() for i in range(2)]

    def model(x: Tensor) -> Tensor:
        return jitgen.grouped_gemm(x, layers[0], offs=offs) + jitgen.grouped_gemm(
            x, layers[1], offs=offs
        )

    x = normal(ROWS, ROWS, K).cuda()
    with jitgen.Session():
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        results = []
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            results.append(compiled(x).clone())

    assert all(torch.equal(each, model(x)) for each in results)
