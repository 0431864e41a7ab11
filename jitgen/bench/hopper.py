# SPDX-License-Identifier: Apache-2.0
"""The hopper suite: what a mixture-of-experts layer asks for, from one token to prefill."""

from __future__ import annotations

from jitgen.bench import targets
from jitgen.bench.cases import PUBLIC
from jitgen.bench.suite import Suite

SUITE = Suite(
    name="hopper",
    cases=PUBLIC,
    targets=targets.rows,
)
