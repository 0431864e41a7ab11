# SPDX-License-Identifier: Apache-2.0
"""One compile as a worker process does it: what it is told, and what it answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jitgen.cache import Store
from jitgen.errors import JitgenError
from jitgen.events import EventKind, events
from jitgen.model import Arch, KernelConfig
from jitgen.runtime.entries import build
from jitgen.settings import settings

TASK = "jitgen.runtime.task:build_task"
"""What `jitgen.build.workers.run` calls."""


def compile_task(store: Store, config: KernelConfig, arch: Arch) -> dict[str, Any]:
    """
    Return the task that brings `config` for `arch` into `store`.

    It carries the settings that a compile reads: this program may have changed them, and a worker
    sees the environment only.
    """
    return {
        "root": str(store.root),
        "mode": store.mode,
        "config": config.to_json(),
        "arch": str(arch),
        "failure_ttl": settings.failure_ttl,
        "lock_timeout": settings.lock_timeout,
    }


def build_task(task: dict[str, Any]) -> dict[str, Any]:
    """
    Do what `compile_task` says, in a worker process.

    Returns:
        ``{"key": ..., "is_new": ...}``, the latter False where another process had compiled it
        meanwhile; or ``{"error": ...}`` with the message of an error that jitgen raised on purpose.
    """
    config, arch = KernelConfig.from_json(task["config"]), Arch.parse(task["arch"])
    before = _num_compiled()
    with settings.scope(failure_ttl=task["failure_ttl"], lock_timeout=task["lock_timeout"]):
        try:
            name = build(_store(task["root"], task["mode"]), config, arch).key
        except JitgenError as error:
            return {"error": str(error)}
    return {"key": name, "is_new": _num_compiled() > before}


def _num_compiled() -> int:
    return events.counts().get(EventKind.COMPILE, 0)


@cache
def _store(root: str, mode: Any) -> Store:
    """Return the store of the tasks; a worker process opens it once."""
    return Store.open(Path(root), mode=mode)
