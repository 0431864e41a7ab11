# SPDX-License-Identifier: Apache-2.0
"""The template of every target's operation."""

from __future__ import annotations

from jitgen.config import Arch
from jitgen.targets.legality import rules, target

TEMPLATES = {
    f"{arch} {template.entry}": template
    for arch in Arch
    for op in target(arch).operations
    for template in rules(arch, op).templates()
}
