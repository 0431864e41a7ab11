# SPDX-License-Identifier: Apache-2.0
"""Kernels for one group of few rows: right for any number of rows, refused for other sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import inspect
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Schedule, Tile
from jitgen.errors import InputError
from jitgen.runtime.session import current
from jitgen.verify import device
from jitgen.verify.artifacts import compiled
from tests import needs
from tests.problems import make_for, verify_exact

pytestmark = [needs.compiler, needs.linker]

CONFIG = GroupedGemmConfig(
    layout=Layout.RAGGED,
    tile=Tile(m=8, n=32, k=256),
    schedule=Schedule(stream_b=True, one_group=True),
)


@pytest.fixture
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    with device("sm_90a", num_sms=2):
        yield


@pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]")
def test_nothing_spills(shared_cache: None) -> None:
    found = inspect.resources(compiled(render(CONFIG, Arch.SM_90A)).library)

    assert (found.stack_bytes, found.spill_instructions) == (0, 0)
    assert found.threads * found.registers * 2 <= 65_536


@pytest.mark.parametrize(("rows", "expected_m"), [(3, None), (8, 8), (21, 4)])
def test_the_selector_takes_it_whatever_rows_come(
    rows: int, expected_m: int | None, emulated_gpu: None
) -> None:
    """Also where more rows come than were expected. Without a number, those of `a` are."""
    case = make_for(CONFIG, [rows], 136, 384, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, expected_m=expected_m))
    launches = [launch for each in current.get().memo.values() for launch in each]
    assert {launch.config for launch in launches} == {CONFIG}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [0, 3, 8, 9, 24])
def test_rows(rows: int, emulated_gpu: None) -> None:
    case = make_for(CONFIG, [rows], 200, 640, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=CONFIG))


def test_bits_of_a_row_do_not_depend_on_others(emulated_gpu: None) -> None:
    """Not on their number, nor on the place of a row among them."""
    case = make_for(CONFIG, [19], 40, 1152)
    given = case.arguments
    every = jitgen.grouped_gemm(**given, config=CONFIG)[:19]

    def of(rows: Tensor) -> Tensor:
        scale = given["a_scale"][rows].T.contiguous().T
        count = torch.tensor([len(rows)], dtype=torch.int32)
        some = {**given, "a": given["a"][rows], "a_scale": scale, "offs": count}
        some.pop("out", None)
        return jitgen.grouped_gemm(**some, config=CONFIG)

    for rows in (torch.tensor([18]), torch.arange(18, -1, -1), torch.tensor([5, 17, 5])):
        assert torch.equal(of(rows), every[rows])


@pytest.mark.parametrize(("groups", "k"), [(2, 256), (1, 272)])
def test_other_sizes_are_refused(groups: int, k: int, emulated_gpu: None) -> None:
    case = make_for(CONFIG, [3] * groups, 64, k)

    with pytest.raises(InputError, match=f"is for one group .*got {groups} groups and K {k}"):
        jitgen.grouped_gemm(**case.arguments, config=CONFIG)


def test_direct_calls_of_other_sizes_are_refused(emulated_gpu: None) -> None:
    """Without a launch, by the entry or by the check that says why."""
    given = make_for(CONFIG, [3, 3], 64, 256).arguments
    kernel = jitgen.get_kernel(CONFIG, "sm_90a")
    out = torch.empty(len(given["a"]), 64, dtype=torch.bfloat16)
    names = ("a", "b", "a_scale", "b_scale", "offs")

    with pytest.raises(InputError, match=r"one group .*got 2 groups and K 256"):
        kernel(*(given[name] for name in names), out, 2)
