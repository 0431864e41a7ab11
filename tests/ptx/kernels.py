# SPDX-License-Identifier: Apache-2.0
"""Which kernels are compared, and what of them."""

from __future__ import annotations

import hashlib
import re
from itertools import product
from typing import Any

from jitgen.codegen.render import render
from jitgen.compile import compiler
from jitgen.config import Arch, Config, Layout
from tests import pinned
from tests.candidates import every_candidate

_NOTE = re.compile(r"^\s*(?://|\.loc\b|\.file\b)[^\n]*\n", re.MULTILINE)
"""Comments, and which lines of the source PTX comes from."""

_SYMBOL = re.compile(r"\bkernel_cutlass_\w+?(?=_param_\d+\b|\b)")
"""What the compiler calls a kernel: its function in the source, and the types of its arguments."""


def names() -> list[str]:
    """Return the names of the kernels that are pinned, and of all grouped GEMMs to choose from."""
    found = dict.fromkeys(pinned.NAMES)
    for arch, layout in product(Arch, Layout):
        found |= dict.fromkeys(config.name(arch) for config in every_candidate(arch, layout))
    return list(found)


def sample(names: list[str], number: int) -> list[str]:
    """Return `number` of `names`, as many of each operation and target as there are."""
    families: dict[tuple[str, Arch], list[str]] = {}
    for name in names:
        config, arch = Config.parse(name)
        families.setdefault((config.op, arch), []).append(name)
    found: list[str] = []
    waiting = sorted(families.values(), key=len)  # what small families leave goes to larger ones
    for k, family in enumerate(waiting):
        share = min(len(family), -(-(number - len(found)) // (len(waiting) - k)))
        found += [family[i * len(family) // share] for i in range(share)]
    return found


def normalised(ptx: str) -> str:
    """Return PTX without its comments and line marks, its kernels by their order, not by name."""
    symbols: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return symbols.setdefault(match[0], f"kernel_{len(symbols)}")

    return _SYMBOL.sub(numbered, _NOTE.sub("", ptx))


def digest(task: dict[str, Any]) -> dict[str, Any]:
    """Return the SHA-256 of the PTX of kernel ``task["name"]``; on a CPU that of its object."""
    config, arch = Config.parse(task["name"])
    artifact = compiler.compile_source(render(config, arch), wants_ptx=arch.is_gpu, links=False)
    content = normalised(artifact.ptx).encode() if arch.is_gpu else artifact.files[artifact.library]
    return {"digest": hashlib.sha256(content).hexdigest()}
