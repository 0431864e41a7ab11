# SPDX-License-Identifier: Apache-2.0
"""Which template each line of a kernel comes from."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from jitgen import templates
from jitgen.codegen.partials import Origin, Origins, origins
from jitgen.codegen.render import SECTION, Source, render
from jitgen.config import Config
from jitgen.errors import ConfigError, RenderError
from jitgen.targets.legality import rules
from tests.templates import TEMPLATES
from tests.unit.test_specialise import KERNELS

CPU = "combine_bf16_cpu"


@cache
def _made(name: str) -> tuple[Source, Origins]:
    source = render(*Config.parse(name))
    return source, origins(source)


def _line_of(origin: Origin) -> str:
    text = (templates.ROOT / origin.partial).read_text(encoding="utf-8")
    return text.split("\n")[origin.line - 1].strip()


def _words(line: str) -> set[str]:
    return set(re.findall(r"\w+", line))


@pytest.mark.parametrize("name", KERNELS)
def test_each_line_is_that_of_its_template(name: str) -> None:
    """As it stands there, but for values, and for the few that were shortened or joined."""
    source, found = _made(name)
    rows = [*zip(source.text.splitlines(), found.lines, strict=True)]
    section, same, changed = "", 0, []
    for row, origin in rows:
        if match := SECTION.fullmatch(row):
            section = match[1]
            assert origin is None
        elif not row:
            assert origin is None
        else:
            assert origin is not None
            line = _line_of(origin)
            pattern = ".*".join(map(re.escape, re.split(r"\{\{.*?\}\}", line)))
            if re.fullmatch(pattern, row.strip()):
                same += 1
            else:
                changed.append((row, line))
            assert not section or origin.partial.endswith(".txt.jinja") or origin.partial == section

    assert same > 0.9 * (same + len(changed))
    alike = [bool(_words(row) & _words(line)) for row, line in changed]
    assert sum(alike) >= 0.6 * len(alike)


@pytest.mark.parametrize("name", KERNELS)
def test_the_parts_are_what_the_template_includes(name: str) -> None:
    """In order, the entry first; each has its lines within those of what includes it."""
    config, arch = Config.parse(name)
    source, found = _made(name)
    (template,) = (each for each in rules(arch, config.op).templates() if each.takes(config))
    open_parts = []
    for part in found.parts:
        del open_parts[part.depth :]
        if open_parts:
            parent = open_parts[-1]
            text = (templates.ROOT / parent.partial).read_text(encoding="utf-8")
            assert part.partial in templates.referred(parent.partial, text)
            assert part.first is None or parent.first <= part.first <= part.last <= parent.last
        open_parts.append(part)
    sections = [SECTION.fullmatch(row) for row in source.text.split("\n")]

    assert (found.parts[0].partial, found.parts[0].depth) == (template.entry, 0)
    assert {match[1] for match in sections if match} <= {part.partial for part in found.parts}
    assert sum(part.own_lines for part in found.parts) == sum(
        origin is not None for origin in found.lines
    )


def test_an_edited_source_has_no_origins() -> None:
    """It would be told what lines of another text come from."""
    source = render(*Config.parse(CPU))

    with pytest.raises(ConfigError, match="not what the templates here give"):
        origins(replace(source, text=f"{source.text}# mine\n"))


def test_a_template_that_cannot_be_followed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in's template may have expressions of several lines, which no mark may stand in."""
    template = TEMPLATES["cpu cpu/combine.py.jinja"]
    entry = (templates.ROOT / template.entry).read_text(encoding="utf-8")
    place = tmp_path / template.entry
    place.parent.mkdir()
    place.write_text(f"{entry.rstrip()}\n# {{{{\n    1 + 1\n}}}}\n", encoding="utf-8")
    moved = template._replace(root=tmp_path)
    monkeypatch.setattr(type(rules("cpu", "combine")), "templates", lambda _: (moved,))
    source = render(*Config.parse(CPU))

    assert source.text.endswith("# 2\n")
    with pytest.raises(RenderError, match="which lines come of which file"):
        origins(source)
