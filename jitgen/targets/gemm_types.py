# SPDX-License-Identifier: Apache-2.0
"""Fields of a grouped GEMM's config that wait for a target that has kernels for them."""

from __future__ import annotations

from jitgen.config import BLayout
from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.targets.protocol import refuse_unless


def refuse_what_is_to_come(config: KernelConfig, arch: str) -> None:
    """Refuse scales of a that are not b's, weights that were prepared, and a bias."""
    types = config.operands
    refuse_unless(
        types.a_scale_granularity is None,
        "E_SCALES",
        f"a_scale_granularity={types.a_scale_granularity} beside {types.scale_granularity} scales "
        f"of b has no {arch} kernel: leave it out, and a's are as b's",
    )
    refuse_unless(
        types.b_layout is BLayout.PLAIN,
        "E_B_LAYOUT",
        f"b_layout={types.b_layout} has no {arch} kernel: {types.b_dtype} weights are read as they "
        "are (plain)",
    )
    refuse_unless(
        not config.epilogue.bias, "E_EPILOGUE", f"bias has no {arch} kernel: add it afterwards"
    )
