# SPDX-License-Identifier: Apache-2.0
"""
The blackwell suite: experts, rows, N and K, each with each, and a few calls of the other layouts.

It has no targets yet: nobody has run it on a Blackwell.
"""

from __future__ import annotations

from pathlib import Path

from jitgen.bench.suite import Suite

SUITE = Suite(
    name="blackwell",
    cases=Path(__file__).with_name("blackwell.json"),
    targets=lambda _: (),
)
