# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from the exact one: half a unit in the last place of its type."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from jitgen.ops.sums import rounding  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_rounding_loses_is_allowed_and_a_unit_is_not(dtype: torch.dtype) -> None:
    """Subnormal values of float16 were called wrong: products of 1e-5 are among them."""
    least = torch.finfo(dtype).smallest_normal
    exact = torch.logspace(-1.5, 6, 4000, dtype=torch.float64) * least
    lost = (exact.to(dtype).double() - exact).abs()
    unit = torch.finfo(dtype).eps * exact.clamp(min=least)

    assert bool((lost <= rounding(exact, dtype)).all())
    assert bool((rounding(exact, dtype) < unit).all())
