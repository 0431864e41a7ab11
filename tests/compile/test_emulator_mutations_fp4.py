# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose in kernels for prepacked weights: the emulator finds every one."""

from __future__ import annotations

from typing import Any

import pytest

from jitgen.ops.grouped_gemm.cases import Sizes
from tests import needs
from tests.compile.mutations import Mutation
from tests.compile.mutations_fp4 import PREPACKED
from tests.compile.mutations_live_rows import LIVE_ROWS
from tests.compile.mutations_live_tiles import LIVE_TILES
from tests.compile.mutations_tall import TALL
from tests.compile.programs import Programs, assert_found

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

_SIZES = Sizes(rows=(3, 0, 9), n=136, k=1696, num_sms=1)
_NAME = "grouped_gemm_ragged_{}_t8x128x128_c1x1_acc1_sm_90a"
_LISTED = "grouped_gemm_contiguous_e4m3_e2m1_mx32_bf16_asrow_bexact1_t8x128x128_c1x1_acc1_sm_90a"
_TALL = "256x128x128_c1x2"
PROGRAMS: dict[str, tuple[str, Any]] = {
    "exact": (_NAME.format("e4m3_e2m1_mx32_bf16_asblock128_bexact1"), _SIZES),
    "wide": (_NAME.format("bf16_e2m1_mx32_bf16_asnone_bwide1"), _SIZES),
    "folded": (_NAME.format("e4m3_e2m1_mx32_bf16_asrow_bfolded1"), _SIZES),
    "live rows": (
        _LISTED.replace("t8x", "t32x"),
        Sizes(rows=(3, 0, 32, 17), n=136, k=1696, num_sms=2),
    ),
    "live tiles": (_LISTED, Sizes(rows=(130, 0, 30, 3), n=136, k=160, num_sms=2)),
    "live tiles, more than at once": (
        _LISTED,
        Sizes(rows=(*[0] * 23, 66, 3), n=8, k=32, num_sms=2),
    ),
    "live tiles, more than entries": (
        _LISTED,
        Sizes(rows=(3, *[0] * 1600, 66, 3), n=8, k=32, num_sms=2),
    ),
    "tall": (
        _NAME.format("e4m3_e2m1_mx32_bf16_asrow_bfolded1").replace("8x128x128_c1x1", _TALL),
        Sizes(rows=(3, 0, 190, 257), n=400, k=800, num_sms=4),
    ),
}
"""Kernels, and problems that wrap every pipeline and give each CTA several tiles."""
MUTATIONS = (*PREPACKED, *LIVE_TILES, *LIVE_ROWS, *TALL)


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs(PROGRAMS)


def test_there_are_many() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 19


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_unchanged_programs_are_clean(programs: Programs, name: str) -> None:
    """But for warnings of a fence that LLVM moves: see `fragment` in docs/emulator.md."""
    program = programs[name]
    found = program.findings(program.artifact.ptx, "quick")
    assert [finding for finding in found if finding.kind != "fragment"] == []


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_found(programs: Programs, mutation: Mutation) -> None:
    assert_found(programs[mutation.program], mutation)
