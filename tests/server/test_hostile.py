# SPDX-License-Identifier: Apache-2.0
"""Requests that ask for more than one client may have."""

from __future__ import annotations

import pytest

from jitgen.errors import PlanError
from jitgen.server.foreman import expand


def test_a_plan_in_a_request_is_no_bomb() -> None:
    """A line of JSON stands for a thousand choices, half a minute in which nobody is answered."""
    problem = {
        "layout": "ragged",
        "groups": list(range(1, 102)),
        "rows_per_group": {"min": 1, "max": 8192},
        "matrix": {"n": 4096, "k": 7168},
        "dtype": "e4m3",
        "out_dtype": "bf16",
        "scale_granularity": "block128",
    }

    with pytest.raises(PlanError, match="101 combinations, and 100 are the most"):
        expand({"plan": {"problems": [problem]}, "arch": "sm_90a"})
