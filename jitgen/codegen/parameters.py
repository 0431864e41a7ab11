# SPDX-License-Identifier: Apache-2.0
"""
The parameters of a template: the config, and the numbers that the target's rules derive from it.

Sources and keys are both made from these. This module does not import Jinja, because a warm start
only needs the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from jitgen.config import Arch, Config
from jitgen.support.documents import canonical_json
from jitgen.targets.legality import require, rules
from jitgen.targets.protocol import Template
from jitgen.templates import contents

RENDERING = 3
"""
Version of `jitgen.codegen.render`, which is part of every key. Increase it with every change that
renders a different text from the same template and parameters.
"""


COMMENT_WIDTH = 94
"""Characters in a line of the config at the top of a source."""


def rendering() -> dict[str, int]:
    """Return the inputs of rendering besides template and parameters."""
    return {"version": RENDERING, "comment_width": COMMENT_WIDTH}


def template_of(config: Config, arch: Arch) -> Template:
    """Return the template that kernels of `config` for `arch` are rendered from."""
    return next(each for each in rules(arch, config.op).templates() if each.takes(config))


# They are compiled where they are used: a warm start of a cpu kernel needs none.
_STATED = r"^(?:## |\{# )Parameters: (.*(?:\n##     .*)*)"
_CODE = r"(?:^|\s)##[^\n]*|\{#.*?#\}|^[ \t]*#%[-+]?([^\n]*)|\{\{(.*?)\}\}"
"""Comments, which are not code; a statement; an expression."""

_BINDING = r"\s*(?:set ([\w, ]+?) =(.*)|(?:from .* )?import (\w+))"
_STRING = r'"[^"]*"'
_NAME = r"(?<![\w.])(?<!\| )[A-Za-z_]\w*(?!\w|=)"
_JINJA = frozenset(
    (
        *("if", "elif", "else", "endif", "and", "or", "not", "in", "is", "none", "true", "false"),
        *("include", "dict", "range"),
    )
)


def read(template: Template) -> frozenset[str]:
    """
    Return the names of the parameters that the files of a template read.

    A partial lists them at its top, in a line ``Parameters:``, which a test compares with Jinja's
    result. A file without such a line, such as the entry, is searched for names, because a warm
    start needs the parameters for its key and does not import Jinja.
    """
    return (
        _read(template.root, template.entry)
        if template.parameters is None
        else (template.parameters)
    )


@cache
def _read(root: Path, entry: str) -> frozenset[str]:
    found: set[str] = set()
    for content in contents(root, entry).values():
        text = content.decode("utf-8")
        stated = re.search(_STATED, text, re.MULTILINE)
        found |= _free_names(text) if stated is None else {*re.findall(r"\w+", stated[1])}
    return frozenset(found - _JINJA)


def _free_names(text: str) -> set[str]:
    """Return the names that a template reads before it sets or imports them."""
    found: set[str] = set()
    bound: set[str] = set()
    for statement, expression in re.findall(_CODE, text, re.MULTILINE | re.DOTALL):
        code = re.sub(_STRING, "", statement or expression)
        if binding := re.match(_BINDING, code):
            targets, code, imported = binding.groups(default="")
            found |= {*re.findall(_NAME, code)} - bound
            bound |= {*re.findall(r"\w+", targets or imported)}
        else:
            found |= {*re.findall(_NAME, code)} - bound
    return found


def derived(config: Config, arch: Arch) -> dict[str, object]:
    """
    Return the derived numbers that the template declares, by name.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
    """
    template, numbers = template_of(config, arch), require(config, arch).numbers
    if not _mentions(template, numbers):
        return {}
    declared = read(template)
    return {name: value for name, value in numbers.items() if name in declared}


def _mentions(template: Template, names: Iterable[str]) -> bool:
    """
    Return whether a template may read any of `names`; this is faster than finding out which ones it
    reads.
    """
    if template.parameters is not None:
        return not template.parameters.isdisjoint(names)
    texts = contents(template.root, template.entry).values()
    return any(name.encode() in text for name in names for text in texts)


def parameters(config: Config, arch: Arch) -> dict[str, object]:
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
    declared = read(template_of(config, arch))
    return {name: value for name, value in every.items() if name in declared}
