# SPDX-License-Identifier: Apache-2.0
"""The template of every target's operation."""

from __future__ import annotations

from jitgen import templates
from jitgen.config import Arch
from jitgen.targets.legality import rules, target
from jitgen.targets.protocol import Template

TEMPLATES = {
    f"{arch} {template.entry}": template
    for arch in Arch
    for op in target(arch).operations
    for template in rules(arch, op).templates()
}


def places(template: Template) -> dict[str, str]:
    """Return the files of a template by their names, each as it lies below jitgen's templates."""
    return {
        name: str(templates.path_of(template.root, name).relative_to(templates.ROOT))
        for name in templates.files(template)
    }
