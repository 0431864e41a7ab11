# SPDX-License-Identifier: Apache-2.0
"""Which kernels are compared, and what of them."""

from __future__ import annotations

import hashlib
from itertools import product
from typing import Any

from jitgen.codegen.render import render
from jitgen.compile import compiler
from jitgen.config import Arch, Config, Layout
from tests import pinned
from tests.candidates import every_candidate


def names() -> list[str]:
    """Return the names of the kernels that are pinned, and of all grouped GEMMs to choose from."""
    found = dict.fromkeys(pinned.NAMES)
    for arch, layout in product(Arch, Layout):
        found |= dict.fromkeys(config.name(arch) for config in every_candidate(arch, layout))
    return list(found)


def digest(task: dict[str, Any]) -> dict[str, Any]:
    """Return the SHA-256 of the PTX of kernel ``task["name"]``; on a CPU that of its object."""
    config, arch = Config.parse(task["name"])
    artifact = compiler.compile_source(render(config, arch), wants_ptx=arch.is_gpu, links=False)
    content = artifact.ptx.encode() if arch.is_gpu else artifact.files[artifact.library]
    return {"digest": hashlib.sha256(content).hexdigest()}
