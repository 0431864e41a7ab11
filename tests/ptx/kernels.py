# SPDX-License-Identifier: Apache-2.0
"""Which kernels are compared, and what of them."""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path
from typing import Any

from jitgen.codegen.render import render
from jitgen.compile import compiler
from jitgen.config import Arch, Config, DType, Layout
from jitgen.errors import UnsupportedConfig
from jitgen.targets.gemm import operands_of
from jitgen.targets.legality import rules
from tests.candidates import candidates

GOLDENS = Path(__file__).parents[1] / "goldens"


def names() -> list[str]:
    """Return the names of all kernels that may be chosen, and of the goldens."""
    found = dict.fromkeys(path.stem for path in sorted(GOLDENS.glob("*.py")))
    for arch in Arch:
        found_rules = rules(arch, "grouped_gemm")
        spaces = getattr(found_rules, "spaces", (found_rules.space,))
        kinds = [
            operands
            for space in spaces
            for operands in operands_of(space)
            if operands.out_dtype is DType.BF16 or not operands.b_layout.is_prepared
        ]
        for layout, operands in product(Layout, kinds):
            try:
                configs = candidates(arch, layout, operands)
            except UnsupportedConfig:
                continue
            found |= dict.fromkeys(config.name(arch) for config in configs)
    return list(found)


def digest(task: dict[str, Any]) -> dict[str, Any]:
    """Return the SHA-256 of the PTX of kernel ``task["name"]``; on a CPU that of its object."""
    config, arch = Config.parse(task["name"])
    artifact = compiler.compile_source(render(config, arch), wants_ptx=arch.is_gpu, links=False)
    content = artifact.ptx.encode() if arch.is_gpu else artifact.files[artifact.library]
    return {"digest": hashlib.sha256(content).hexdigest()}
