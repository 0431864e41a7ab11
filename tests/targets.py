# SPDX-License-Identifier: Apache-2.0
"""
Which targets a sweep goes over: kernels of some are those of another, compiled anew, and what holds
for one holds for both. Their sweeps are for the night.
"""

from __future__ import annotations

import pytest

from jitgen.config import Arch

TWINS = {Arch("sm_103a"): Arch("sm_100a"), Arch("sm_121a"): Arch("sm_120a")}
"""Targets whose rules and templates are another's; `test_legality` holds them to it."""

OWN = tuple(arch for arch in Arch if arch not in TWINS)
"""Targets that are not in `TWINS`."""

EACH = [pytest.param(arch, marks=[pytest.mark.nightly] * (arch in TWINS)) for arch in Arch]
"""Parameters of a test that sweeps over every target."""
