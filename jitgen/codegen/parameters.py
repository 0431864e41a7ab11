# SPDX-License-Identifier: Apache-2.0
"""
What a template is given: the config, and the numbers that the target's rules derive from it.

Sources and keys both start from here, without Jinja: a warm start needs the key only.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jitgen.config import Arch, Config
from jitgen.support.documents import canonical_json
from jitgen.targets.legality import require, rules
from jitgen.targets.protocol import Template

RENDERING = 1
"""
Version of what `jitgen.codegen.render` makes of a template and its parameters. Part of every key:
raise it with every change that gives another text.
"""


COMMENT_WIDTH = 94
"""Letters in a line of the config that a source begins with."""


def rendering() -> dict[str, int]:
    """Return what a source depends on besides template and parameters."""
    return {"version": RENDERING, "comment_width": COMMENT_WIDTH}


def template_of(config: Config, arch: Arch) -> Template:
    """Return the template that kernels of `config` for `arch` are rendered from."""
    return next(each for each in rules(arch, config.op).templates() if each.takes(config))


def derived(config: Config, arch: Arch) -> dict[str, Any]:
    """
    Return the derived numbers that the template declares, by name.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
    """
    declared = template_of(config, arch).parameters
    numbers = dataclasses.asdict(require(config, arch).derived)  # type: ignore[call-overload]
    return {name: value for name, value in numbers.items() if name in declared}


def parameters(config: Config, arch: Arch) -> dict[str, Any]:
    """
    Return every value that the template declares.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
    """
    every = {
        "name": config.name(arch),
        "config_json": canonical_json(config.to_json()),
        **config.parameters(),
        **derived(config, arch),
    }
    declared = template_of(config, arch).parameters
    return {name: value for name, value in every.items() if name in declared}
