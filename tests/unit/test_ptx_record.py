# SPDX-License-Identifier: Apache-2.0
"""What ``python -m tests.ptx`` compares."""

from __future__ import annotations

from collections import Counter

from jitgen.config import Config
from tests.ptx.kernels import names, normalised, sample

_PTX = """//
// A compiler
//
.visible .entry kernel_cutlass_{name}_tensorptr_0(
	.param .u32 kernel_cutlass_{name}_tensorptr_0_param_0
)
{{
	.loc	1 {line} 0
	// begin inline asm
	ld.param.u32 	%r1, [kernel_cutlass_{name}_tensorptr_0_param_0];
	add.s32 	%r2, %r1, {value};
}}
"""


def test_names_lines_and_comments_of_ptx_do_not_count() -> None:
    """A function of the source that has another name, or stands elsewhere, is the same kernel."""
    before = normalised(_PTX.format(name="deal", line=3, value=1))

    assert before == normalised(_PTX.format(name="schedule", line=70, value=1))
    assert "kernel_0_param_0" in before
    assert "//" not in before


def test_instructions_of_ptx_count() -> None:
    """Another value is another kernel."""
    assert normalised(_PTX.format(name="deal", line=3, value=1)) != normalised(
        _PTX.format(name="deal", line=3, value=2)
    )


def test_a_sample_has_kernels_of_every_family() -> None:
    """Small families are there as a whole, large ones in equal parts."""
    every = names()
    found = sample(every, 60)
    families = Counter((config.op, arch) for config, arch in map(Config.parse, found))

    assert len(set(found)) == 60
    assert families.keys() == {(config.op, arch) for config, arch in map(Config.parse, every)}
    assert max(families.values()) <= 8
