# SPDX-License-Identifier: Apache-2.0
"""A compiler that goes wrong: it answers with an entry in good order whose kernel adds up badly."""

from __future__ import annotations

import dataclasses
from typing import Any

from jitgen.cache import Entry
from jitgen.codegen.render import render
from jitgen.compile.compiler import compile_source
from jitgen.config import Config
from jitgen.runtime.spec import spec_of
from jitgen.runtime.tiers import record

RIGHT = "factors[i] = row_scales[i] * b_scales[j * 8 // SCALE_COLUMNS]"
WRONG = "factors[i] = row_scales[i]"


def compile_task(task: dict[str, Any]) -> dict[str, Any]:
    """Compile a kernel by its name; with a mistake in it if the task says so."""
    import base64

    config, arch = Config.parse(task["name"])
    source = render(config, arch)
    if task["is_wrong"]:
        assert source.text.count(RIGHT) == 1
        source = dataclasses.replace(source, text=source.text.replace(RIGHT, WRONG))
    artifact = compile_source(source)
    entry = Entry.of(record(spec_of(config, arch), artifact), artifact.files)
    files = {name: base64.b64encode(data).decode() for name, data in entry.files.items()}
    return {"meta": entry.meta.encode().decode("ascii"), "files": files}
