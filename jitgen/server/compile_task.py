# SPDX-License-Identifier: Apache-2.0
"""
One compile as a process of a pool does it: it is told a config, and answers with an entry.

The process writes nothing but a draft in a folder of its own. What it answers is checked by the
service against what was asked for, so that whatever happens here can spoil one kernel at most.
"""

from __future__ import annotations

import base64
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jitgen.cache import Entry
from jitgen.compile.compile import Where, compile_kernel
from jitgen.compile.provenance import builder
from jitgen.config import Arch, Config
from jitgen.errors import CompileError, JitgenError, ToolchainError
from jitgen.runtime.entries import record
from jitgen.runtime.spec import spec_of

TASK = "jitgen.server.compile_task:compile_task"
"""What a foreman's processes call."""

REFUSED, BROKEN, SHORT, DOUBTFUL = "refused", "broken", "short", "doubtful"
"""The compiler refused it; it does not work here; something ran out; nobody would keep it."""


def compile_task(task: dict[str, Any]) -> dict[str, Any]:
    """
    Compile ``task["config"]`` for ``task["arch"]``.

    Returns:
        ``{"meta": text of meta.json, "files": {name: base64}}``, or ``{"kind": ..., "error":
        ...}``.
    """
    spec = spec_of(Config.from_json(task["config"]), Arch.parse(task["arch"]))
    try:
        # Nothing else lives in this process: a refusal here is as certain as any.
        artifact = compile_kernel(
            spec.config, spec.arch, Where.PROCESS, timeout_s=task["timeout_s"]
        )
        built_by = builder(_Digests(Path(task["scratch"])))
    except CompileError as error:
        return {"kind": REFUSED, "error": error.reason}
    except ToolchainError as error:
        return {"kind": BROKEN, "error": str(error)}
    except (JitgenError, OSError, MemoryError) as error:
        return {"kind": SHORT, "error": f"{type(error).__name__}: {error}"}
    if artifact.doubt:
        return {"kind": DOUBTFUL, "error": artifact.doubt}
    entry = Entry.of(replace(record(spec, artifact), builder=built_by), artifact.files)
    return {
        "meta": entry.meta.encode().decode("ascii"),
        "files": {name: base64.b64encode(data).decode() for name, data in entry.files.items()},
    }


class _Digests:
    """
    Digests of the compiler's files, kept for the other processes of the pool.

    To read 230 MB for each kernel would double the time of a small one. The folder belongs to the
    pool, and a digest that somebody planted there shows as an entry of another builder's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def digest(self, fingerprint: str) -> str | None:
        """Return what `remember` was told."""
        with suppress(OSError):
            text = (self._folder / fingerprint).read_text(encoding="ascii")
            return text if len(text) == 64 else None
        return None

    def remember(self, fingerprint: str, digest: str) -> None:
        """Keep a digest, in one step."""
        with suppress(OSError):
            descriptor, draft = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                stream.write(digest)
            Path(draft).rename(self._folder / fingerprint)
