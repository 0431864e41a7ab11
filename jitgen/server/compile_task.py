# SPDX-License-Identifier: Apache-2.0
"""
One compile in a process of a pool: it receives a config and answers with an entry.

The process writes only a draft in its own folder. The service checks the answer against the
request, so that a failure here can spoil one kernel at most.
"""

from __future__ import annotations

import base64
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from jitgen.cache import Entry
from jitgen.compile.compile import Where, compile_kernel
from jitgen.compile.provenance import builder
from jitgen.config import Arch, Config
from jitgen.errors import CompileError, JitgenError, ToolchainError
from jitgen.runtime.spec import spec_of
from jitgen.runtime.tiers import record

TASK = "jitgen.server.compile_task:compile_task"
"""The function that a supervisor's processes call."""

REFUSED, BROKEN, SHORT, DOUBTFUL = "refused", "broken", "short", "doubtful"
"""
Kinds of failure: the compiler refuses the kernel; the toolchain is broken; memory or another
resource ran out; the result is not reliable enough to store.
"""


class Task(TypedDict):
    """What is compiled, for which target, in how many seconds, and a folder for digests."""

    config: object
    arch: str
    timeout_s: float
    scratch: str


def compile_task(task: Task) -> dict[str, object]:
    """
    Compile ``task["config"]`` for ``task["arch"]``.

    Returns:
        ``{"meta": text of meta.json, "files": {name: base64}}``, or ``{"kind": ..., "error":
        ...}``.
    """
    spec = spec_of(Config.from_json(task["config"]), Arch.parse(task["arch"]))
    try:
        # Only this compile runs in this process, so a refusal is the compiler's own.
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
    if artifact.why_private:
        return {"kind": DOUBTFUL, "error": artifact.why_private}
    entry = Entry.of(replace(record(spec, artifact), builder=built_by), artifact.files)
    return {
        "meta": entry.meta.encode().decode("ascii"),
        "files": {name: base64.b64encode(data).decode() for name, data in entry.files.items()},
    }


class _Digests:
    """
    Digests of the compiler's files, cached for the other processes of the pool.

    Reading 230 MB for each kernel would double the time of a small one. The folder belongs to the
    pool; a forged digest there would show as an entry of another builder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def digest(self, fingerprint: str) -> str | None:
        """Return the digest that `remember` stored; None if there is none."""
        with suppress(OSError):
            text = (self._folder / fingerprint).read_text(encoding="ascii")
            return text if len(text) == 64 else None
        return None

    def remember(self, fingerprint: str, digest: str) -> None:
        """Store a digest atomically."""
        with suppress(OSError):
            descriptor, draft = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                stream.write(digest)
            Path(draft).rename(self._folder / fingerprint)
