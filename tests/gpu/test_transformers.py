# SPDX-License-Identifier: Apache-2.0
"""Models of real width: jitgen's experts in prefill and generate, beside transformers' own."""

from __future__ import annotations

import pytest

from jitgen.bench.transformers.models import MODELS
from jitgen.bench.transformers.run import FP8_LIMIT, GROUPED, OF_GROUPED, OURS, OURS_FP8, WORKS, run
from tests.gpu.configs import ARCH

pytest.importorskip("transformers", reason="needs jitgen[transformers]")
pytestmark = [
    pytest.mark.skipif(ARCH != "sm_90a", reason="layers have kernels for sm_90a"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str) -> None:
    """In bfloat16 within the error of grouped_mm, in FP8 within what quantising tokens costs."""
    found = list(run([MODELS[name]], WORKS, sides=(GROUPED, OURS, OURS_FP8), rounds=1))

    assert [each.work for each in found] == list(WORKS)
    for each in found:
        assert not each.missing
        assert 0 < each.errors[OURS] <= OF_GROUPED * each.errors[GROUPED]
        assert 0 < each.errors[OURS_FP8] < FP8_LIMIT
