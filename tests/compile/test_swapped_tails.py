# SPDX-License-Identifier: Apache-2.0
"""
Kernels that multiply the last rows of groups with swapped operands: each row has the bits that it
has without, and the assembler keeps WGMMAs in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import inspect
from jitgen.config import Arch
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Schedule, Tile
from jitgen.verify import device
from jitgen.verify.artifacts import compiled
from tests import needs
from tests.problems import make_for, verify_exact

pytestmark = [needs.compiler, needs.linker]

TALL = GroupedGemmConfig(
    layout="ragged",
    tile=Tile(m=192, n=128, k=128),
    cluster=Cluster(n=2),
    schedule=Schedule(swap_tail=True),
)
SMALL = replace(TALL, layout="masked", tile=Tile(m=128, n=128, k=128), cluster=Cluster())
HALF = replace(SMALL, operands=Operands(out_dtype="f16"))
BLOCKS = replace(SMALL, layout="contiguous")
EXTRA = replace(TALL, schedule=Schedule(swap_tail=True, extra_rows=True))
MASKED = replace(EXTRA, layout="masked")
NAMES = {
    "tall": TALL,
    "small": SMALL,
    "half": HALF,
    "blocks": BLOCKS,
    "extra": EXTRA,
    "masked extra": MASKED,
}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name == "tall" else pytest.mark.nightly)
        for name, config in NAMES.items()
    ],
)
@pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]")
def test_nothing_spills_and_no_wgmma_waits_for_another(
    config: GroupedGemmConfig, shared_cache: None
) -> None:
    """A wait follows all WGMMAs of a k-block: four of a whole block, eight of a tail."""
    library = compiled(render(config, Arch.SM_90A)).library
    text = inspect.sass(library)
    found = inspect.resources(library)

    assert (found.stack_bytes, found.spill_instructions) == (0, 0)
    assert inspect.count(text, "QGMMA") > 4 * inspect.count(text, "WARPGROUP.DEPBAR")


@pytest.fixture
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    with device("sm_90a", num_sms=2):
        yield


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", NAMES.values(), ids=NAMES)
def test_bits_are_those_of_whole_blocks(config: GroupedGemmConfig, emulated_gpu: None) -> None:
    """
    Of random numbers, which show another order of additions. On a push of the tallest tile, without
    and with extra rows: the assembler takes seconds for each kernel.
    """
    rows = [9, 104, 0, 81, 33, 200, 66, 41]
    case = make_for(config, rows, 136, 272)
    usual = replace(config, schedule=Schedule())
    found, expected = (
        jitgen.grouped_gemm(**case.arguments, config=each) for each in (config, usual)
    )

    owned = case.is_owned
    assert torch.equal(found[owned], expected[owned])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [[1, 200, 8], [137, 16, 72], [64, 193, 40], [41, 0, 24]])
def test_rows(rows: list[int], emulated_gpu: None) -> None:
    """A tail in each warpgroup, with one row and with as many as it may have, and none."""
    case = make_for(TALL, rows, 200, 144, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=TALL))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("layout", "out_dtype"), [("ragged", "bf16"), ("masked", "f16")], ids=["ragged", "masked"]
)
@pytest.mark.parametrize("rows", [[193, 0, 201], [17, 208, 1], [209, 400, 192]])
def test_extra_rows(layout: str, out_dtype: str, rows: list[int], emulated_gpu: None) -> None:
    """One, all and one too many, in the first and in the second tile of a group."""
    config = replace(EXTRA, layout=layout, operands=Operands(out_dtype=out_dtype))
    case = make_for(config, rows, 200, 144, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=config))
