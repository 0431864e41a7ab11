# SPDX-License-Identifier: Apache-2.0
"""One compile in a worker process: its task, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jitgen.cache import Store
from jitgen.codegen.parameters import template_of
from jitgen.compile.compile import Where
from jitgen.config import Arch, Config
from jitgen.config.plugins import OPERATIONS, TARGETS
from jitgen.errors import JitgenError
from jitgen.runtime.spec import key, spec_of
from jitgen.runtime.tiers import Tiers, build
from jitgen.settings import settings
from jitgen.support.failing import is_certain

if TYPE_CHECKING:
    from jitgen.targets.protocol import Template

TASK = "jitgen.plans.task:build_task"
"""The function that `jitgen.compile.workers.run` calls."""

PRELOAD = (
    "filelock",
    "jitgen.cache.builders",
    "jitgen.cache.index",
    "jitgen.cache.prune",
    "jitgen.cache.publishing",
    "jitgen.plans.task:prepare",
)
"""
Modules and functions that a process imports and calls in advance for the tasks of plans, after
those that every compile needs.
"""


_PATHS = ("trust", "token_file")
"""Settings that may be None; then a worker reads them from its environment."""


def compile_task(store: Store, config: Config, arch: Arch, text: str = "") -> dict[str, Any]:
    """
    Return the task that compiles or fetches `config` for `arch` into `store`, from the edited
    source `text` if there is one.

    The task contains the settings that a compile reads, because this program may have changed them,
    and a worker only sees the environment.
    """
    return {
        "root": str(store.root),
        "mode": store.mode,
        "config": config.to_json(),
        "arch": str(arch),
        "text": text,
        "settings": {
            "failure_ttl": settings.failure_ttl,
            "lock_timeout": settings.lock_timeout,
            "cache_size": settings.cache_size,
            "base": [str(path) for path in settings.base],
            "trust_shared": [str(path) for path in settings.trust_shared],
            "plugins": list(settings.plugins),
            "remote": list(settings.remote),
            "service": settings.service,
            "verify": settings.verify,
            **{name: str(path) for name in _PATHS if (path := getattr(settings, name))},
        },
    }


def prepare(tasks: Sequence[dict[str, Any]]) -> None:
    """
    Do once, before processes are forked, what each would do on its own: list the compiler's files,
    load targets, parse templates. Kernels of plug-ins are left out, because their code may not suit
    the process that is forked.
    """
    from jitgen.codegen.render import read_templates
    from jitgen.compile.provenance import compiler_files

    compiler_files()
    operations, targets = OPERATIONS.built_in(), TARGETS.built_in()
    done: set[Template] = set()
    for task in tasks:
        if task["config"]["op"] in operations and task["arch"] in targets and not task.get("text"):
            config, arch = Config.from_json(task["config"]), Arch.parse(task["arch"])
            if (template := template_of(config, arch)) not in done:
                done.add(template)
                read_templates(template)
                key(config, arch)  # what it reads and imports is kept for the forks


def build_task(task: dict[str, Any]) -> dict[str, Any]:
    """
    Run the task of `compile_task`, in a worker process.

    Returns:
        ``{"key": ..., "tier": ..., "why_private": ...}``: the tier that it came from, and why no
        other process will find it, if so; or ``{"error": ..., "is_certain": ...}`` with the message
        of an error that jitgen raised on purpose, and whether another machine would meet it, too.
    """
    config, arch = Config.from_json(task["config"]), Arch.parse(task["arch"])
    with settings.scope(**task["settings"]):
        try:
            store = _store(task["root"], task["mode"])
            # Nothing else lives in this process: a refusal here is as certain as any.
            spec = spec_of(config, arch, task.get("text", ""))
            entry, tier = build(Tiers(store), spec, where=Where.PROCESS)
        except JitgenError as error:
            return {"error": str(error), "is_certain": is_certain(error)}
    return {"key": entry.key, "tier": tier, "why_private": entry.why_private}


@cache
def _store(root: str, mode: Literal["rw", "ro", "off"]) -> Store:
    """Return the store of the tasks; a worker process opens it once."""
    return Store.open(Path(root), mode=mode)
