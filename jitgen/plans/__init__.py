# SPDX-License-Identifier: Apache-2.0
"""
Plans: the problems that a service will compute, from which follow the kernels that it needs.

A plan is a TOML file with a list of problems; every key takes a value or a list of values, and
lists mean every combination of their values::

    description = "what this is"

    [[problems]]
    layout = ["ragged", "masked"]
    groups = [8, 32]
    rows_per_group = { min = 1, max = 8192 }      # or one number
    matrix = [{ n = 4096, k = 7168 }, { n = 7168, k = 2048 }]
    dtype = "e4m3"                                # this and the rest may be left out
    out_dtype = "bf16"
    scale_granularity = "block128"
    optional = false                              # true: targets without such kernels leave it out
    calls = 1000                                  # how often it was called, if that was counted

    [[problems]]
    op = "activation_quantize"                      # grouped_gemm, if left out
    layout = "ragged"
    groups = 8
    rows_per_group = { min = 1, max = 8192 }
    n = [2048, 1536]                              # and the other fields of this one's problem

docs/plans.md is the reference. `recorder` counts the calls of a program, `recording` is their file,
`recorded` makes a plan of it. `prewarm` compiles plans ahead; `rebuild` compiles an entry again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.support.lazy import importing

if TYPE_CHECKING:
    from jitgen.plans.plan import Plan, configs, launches, load, names
    from jitgen.plans.recorded import from_recording
    from jitgen.plans.sweep import Sweep
    from jitgen.plans.write import text

__all__ = ["Plan", "Sweep", "configs", "from_recording", "launches", "load", "names", "text"]

# The recorder and the workers of prewarm need none of these.
__getattr__ = importing(
    __name__,
    {
        "Plan": ".plan",
        "Sweep": ".sweep",
        "configs": ".plan",
        "from_recording": ".recorded",
        "launches": ".plan",
        "load": ".plan",
        "names": ".plan",
        "text": ".write",
    },
)
