# SPDX-License-Identifier: Apache-2.0
"""Random calls with their answers: the one maker for tests, verification and measuring."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from jitgen import reference
from jitgen.config import Config, DType, Layout, ScaleGranularity
from jitgen.config.config import SCALES
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError
from jitgen.formats.e2m1 import values_of
from jitgen.ops.grouped_gemm import cases, draws
from jitgen.ops.grouped_gemm.reference import sums
from jitgen.ops.grouped_gemm.samples import Call, Solved, random_call
from jitgen.ops.sums import distance
from jitgen.quantize import is_kernel_layout

COUNTS = (5, 0, 130)


def problem(layout: Layout = Layout.RAGGED, **changes: object) -> GroupedGemmProblem:
    return replace(GroupedGemmProblem(layout=layout, groups=3, m=135, n=136, k=272), **changes)  # type: ignore[arg-type]


def bytes_of(call: Call) -> list[bytes]:
    return [x.contiguous().view(torch.uint8).numpy().tobytes() for x in call.tensors]


@pytest.mark.parametrize("has_spare", [True, False])
@pytest.mark.parametrize("layout", list(Layout))
def test_padding_rows(layout: Layout, has_spare: bool) -> None:
    call = random_call(problem(layout), COUNTS, has_spare=has_spare)
    owned = call.is_owned

    assert owned.shape == call.out.shape
    assert int(owned[..., 0].sum()) == sum(COUNTS)
    a, b = (torch.ones_like(x, dtype=torch.float32) for x in (call.a, call.b))
    reference.grouped_gemm(a, b, out=call.out, **call.group_argument)  # writes what is owned
    assert torch.equal(~call.out.isnan(), owned)
    rows = {
        Layout.RAGGED: (135, 140),
        Layout.MASKED: (130, 135),
        Layout.CONTIGUOUS: (128 + 256, 128 + 128 + 256 + 128),
    }
    assert call.out.shape[-2] == rows[layout][has_spare]


def test_a_whole_tile_of_padding_lies_between_groups_and_at_the_end() -> None:
    call = random_call(problem(Layout.CONTIGUOUS, groups=4), (*COUNTS, 1), has_spare=True)

    tiles = call.groups.view(-1, 128).amax(1)
    assert tiles.tolist() == [0, -1, 2, 2, 3, -1]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("layout", list(Layout))
def test_exact_sums_are_exact(layout: Layout, scales: ScaleGranularity) -> None:
    """In float32 as in float64: nothing was rounded, so the order of additions does not count."""
    given = problem(layout, a_dtype=scales.operands[0], scale_granularity=scales)
    call = random_call(given, COUNTS, is_exact=True)
    solved = Solved.of(call, is_exact=True)
    scale = call.b_scale.float()

    assert torch.equal(sums(call.arguments, torch.float64), solved.expected.double())
    assert set(values_of(call.a).flatten().tolist()) == {-2, -1, 0, 1, 2}
    assert set(scale[~scale.isnan()].tolist()) <= {0, 0.25, 0.5, 1, 2, 4}


def test_random_values_fill_their_type() -> None:
    call = random_call(problem(a_dtype=DType.BF16, out_dtype=DType.F32), COUNTS)

    assert call.a.dtype is call.b.dtype is torch.bfloat16
    assert abs(float(call.b.float().std()) - 1) < 0.02
    assert 0.5 <= float(call.b_scale.min()) < float(call.b_scale.max()) <= 2.5
    assert call.out.dtype is torch.float32
    assert call.out.isnan().all()


def test_seeds_repeat_and_differ() -> None:
    first, again, other = (random_call(problem(), COUNTS, seed=seed) for seed in (1, 1, 2))

    assert bytes_of(first) == bytes_of(again)
    assert bytes_of(first)[:4] != bytes_of(other)[:4]


@pytest.mark.parametrize("is_exact", [True, False])
def test_chunks_do_not_show(is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are drawn part by part are those that are drawn at once."""
    whole = random_call(problem(), COUNTS, is_exact=is_exact)
    monkeypatch.setattr(draws, "_CHUNK_VALUES", 2**12)

    assert bytes_of(random_call(problem(), COUNTS, is_exact=is_exact)) == bytes_of(whole)


def test_a_copy_lies_as_its_original() -> None:
    call = random_call(problem(Layout.MASKED), COUNTS, has_spare=True)
    copy = call.copy("cpu")

    assert bytes_of(copy) == bytes_of(call)
    assert is_kernel_layout(copy.a_scale)
    pairs = list(zip(call.tensors, copy.tensors, strict=True))
    assert all(x.stride() == y.stride() for x, y in pairs)
    assert not {x.data_ptr() for x, _ in pairs} & {y.data_ptr() for _, y in pairs}


def test_counts_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="row_counts must be 3 counts"):
        random_call(problem(), (1, 2))
    with pytest.raises(ConfigError, match="at least 0"):
        random_call(problem(), (1, 2, -1))
    with pytest.raises(ConfigError, match="max_rows must be at least 130"):
        random_call(problem(Layout.MASKED), COUNTS, max_rows=129)
    assert (
        random_call(problem(Layout.MASKED), COUNTS, max_rows=130, has_spare=True).a.shape[1] == 130
    )


def test_what_is_allowed() -> None:
    """Half a unit in the last place of the output, and what the sums lose."""
    solved = Solved.of(random_call(problem(), COUNTS), is_exact=False)
    solved.out.copy_(solved.expected.masked_fill(~solved.is_owned, float("nan")))
    assert solved.wrong() == 0

    at = tuple(solved.magnitude.eq(solved.magnitude.max()).nonzero()[0].tolist())
    solved.out[at] += 3 * solved.allowed()[at]
    assert solved.wrong() == 1
    assert (solved.allowed(13) > solved.allowed(22))[solved.is_owned].all()
    solved.out[at] = float("nan")
    assert solved.wrong() == 1


def test_distances() -> None:
    have, want = torch.tensor([3.0, 4.0, 1.0]), torch.tensor([3.0, 4.0, 0.0])

    assert distance([(have, want)]) == (1 / 5, 1 / 4)
    assert distance([(have[:1], want[:1]), (have[1:], want[1:])]) == pytest.approx((1 / 5, 1 / 4))
    assert distance([]) == distance([(have[:0], want[:0])]) == (0.0, 0.0)
    assert distance([(want * 0, want * 0)]) == (0.0, 0.0)
    assert all(map(math.isnan, distance([(have * math.nan, want)])))


def test_distances_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values, read = torch.ones(3), torch.Tensor.tolist
    waits: list[torch.Tensor] = []

    def tolist(tensor: torch.Tensor) -> object:
        waits.append(tensor)
        return read(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)

    assert distance([(values, values), (values, values)]) == (0.0, 0.0)
    assert len(waits) == 1


PREPACKED = [
    ("bf16", "none", "wide1"),
    ("e4m3", "row", "folded1"),
    ("e4m3", "block128", "exact1"),
    ("e4m3x2", "row", "exact1"),
]


@pytest.mark.parametrize(("a_dtype", "of_a", "b_layout"), PREPACKED)
@pytest.mark.parametrize("layout", list(Layout))
def test_prepacked_weights_have_nans_to_find(
    layout: Layout, a_dtype: str, of_a: str, b_layout: str
) -> None:
    """One column of each group; all else is exact, and a column that is not NaN is wrong."""
    given = problem(
        layout,
        a_dtype=a_dtype,
        b_dtype="e2m1",
        scale_granularity="mx32",
        k=288,
        a_scale_granularity=of_a,
        b_layout=b_layout,
        bias=True,
    )
    call = random_call(given, COUNTS, is_exact=True, has_spare=True, spoils_idle=True)
    solved = Solved.of(call, is_exact=True)
    is_nan = solved.expected.isnan()

    assert len(call.tensors) == 7 - (of_a == "none")
    assert int(is_nan[..., 0].sum()) == 0
    assert int((is_nan & solved.is_owned).sum()) == sum(COUNTS)
    wide = sums(call.arguments, torch.float64)
    assert torch.equal(wide[~is_nan], solved.expected[~is_nan].double())
    reference.grouped_gemm(**call.arguments)
    assert solved.wrong() == 0
    call.out[is_nan] = 0
    assert solved.wrong() == sum(COUNTS)


@pytest.mark.parametrize("split", ["", "_splitk2"])
def test_prepacked_problems_have_a_whole_group_of_values(split: str) -> None:
    """INT4 groups of 128 with K of 32 were read as groups of 32: no such kernel was verified."""
    types = "e4m3_int4_group128_bf16_asrow_bexact1"
    config, arch = Config.parse(f"grouped_gemm_ragged_{types}_t32x128x128_c1x1_acc1{split}_sm_90a")
    sizes = [*cases.Sizes.of(config, arch), *cases.Sizes.edges(config, arch)]

    assert min(each.k for each in sizes) == 128


def test_a_shorter_problem_of_ones_own_is_refused() -> None:
    name = "grouped_gemm_ragged_e4m3_int4_group128_bf16_asrow_bexact1_t32x128x128_c1x1_acc1_sm_90a"

    with pytest.raises(ConfigError, match="K must be at least 128"):
        cases.Sizes.parse("2:16:64:32", Config.parse(name)[0])
