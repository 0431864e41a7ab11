# SPDX-License-Identifier: Apache-2.0
"""The guide's table of settings is the code's; ``ACCEPT_DOCS=1`` writes it anew."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from jitgen.server.routes import ROUTES
from jitgen.server.settings import SECTIONS, Toolchain
from jitgen.support.values import parse_size

GUIDE = Path(__file__).parents[2] / "docs/service.md"
BEGIN, END = "<!-- table: settings -->\n", "<!-- end -->"


def shown(default: Any, *, is_size: bool = False) -> str:
    """Return a default as the settings file may state it: a size in the unit that people read."""
    if default is None:
        return "none"
    if is_size:
        default = f"{default >> 20}MiB" if default % 2**30 else f"{default >> 30}GiB"
        assert parse_size(default)
    if isinstance(default, Path):
        default = str(default)
    return f"`{json.dumps(default)}`"


def _default(spec: dataclasses.Field[Any]) -> str:
    return shown(spec.default, is_size=spec.metadata["read"] is parse_size)


def table() -> str:
    kinds = {**SECTIONS, "toolchains": Toolchain}
    rows = ["| key | default | what it is |", "|---|---|---|"]
    rows += [
        f"| `{section}.{spec.name}` | {_default(spec)} | {spec.metadata['help']} |"
        for section, kind in kinds.items()
        for spec in dataclasses.fields(kind)
    ]
    return (
        "\n".join([*rows, f"| `ui` | {shown(True)} | whether there are pages for people |"]) + "\n"
    )


def test_every_setting_is_in_the_guide() -> None:
    """Names, defaults and what they are for."""
    text = GUIDE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    written, after = rest.split(END, 1)
    if os.environ.get("ACCEPT_DOCS"):
        GUIDE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")

    assert written == table()


def test_every_resource_is_in_the_guide() -> None:
    """By its path."""
    text = GUIDE.read_text(encoding="utf-8")
    for route in ROUTES:
        if not route.is_page:
            path = route.path.replace("{key}", "<key>").replace("{digest}", "<digest>")
            assert path in text, route.path
