# SPDX-License-Identifier: Apache-2.0
"""
The supervisor of one toolchain: a process in the toolchain's virtual environment, which imports the
compiler once and forks a process for each compile (see `jitgen.compile.worker_server`).

Unlike the worker server of a library call, it lives as long as the service and receives tasks one
by one. It also answers the questions that only its version of jitgen can answer
(`jitgen.server.questions`). Lines are JSON::

    <- {"hello": {"toolchain": {...}, "jitgen": "0.9", "targets": [...], "cannot": ""}}
    -> {"task": {...}}                         <- {"index": 0, "kind": "ok", "result": {...}, ...}
    -> {"ask": 7, "what": "examine", ...}      <- {"ask": 7, "answer": {...}}
"""

from __future__ import annotations

import gc
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from jitgen._version import __version__
from jitgen.compile import toolchain
from jitgen.compile.worker_server import Server, preload
from jitgen.compile.workers import PRELOAD, WITHOUT
from jitgen.config import Arch, Config
from jitgen.errors import ConfigError, JitgenError, PlanError, UnsupportedConfig
from jitgen.runtime.spec import spec_of
from jitgen.server.compile_task import TASK
from jitgen.server.questions import Question
from jitgen.targets.legality import check

_MODULE = TASK.partition(":")[0]
_MOST_SWEEPS = 100
"""Most sweeps of a plan in a request: each takes 30 ms, and delays the next question so long."""


class Supervisor(Server):
    """Runs tasks and answers questions as they come, until the service disconnects."""

    is_open = True

    def __init__(self, client: socket.socket, jobs: int, timeout_s: float) -> None:
        request = {"function": TASK, "tasks": [], "jobs": jobs, "timeout_s": timeout_s}
        super().__init__(client, request)
        self._connection = client
        self._rest = b""

    def hear(self) -> bool:
        """Receive tasks and questions; returns whether the service is still connected."""
        received = self._connection.recv(2**16)
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            self._do(json.loads(line))
        return bool(received)

    def _do(self, request: dict[str, Any]) -> None:
        if "task" in request:
            self.add(request["task"])
            return
        try:
            answer = ANSWERS[request["what"]](request)
        except JitgenError as error:
            answer = {"error": type(error).__name__, "reason": str(error)}
        except RecursionError:
            answer = {"error": "ConfigError", "reason": "it nests too deeply"}
        self.say(json.dumps({"ask": request["ask"], "answer": answer}).encode("ascii"))


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """
    Answer `Question.EXAMINE`: name, key and legality of a config on a target.

    Returns:
        ``{"name", "key", "document"}``; or ``{"refused": {"code", "reason", "proposal"}}``.

    Raises:
        ConfigError: It is malformed.
    """
    config, arch = Config.from_json(request["config"]), Arch.parse(request["arch"])
    verdict = check(config, arch)
    if not verdict.ok:
        proposal = verdict.proposal
        return {
            "refused": {
                "code": verdict.code,
                "reason": verdict.reason,
                "proposal": proposal.to_json() if proposal is not None else None,
            }
        }
    spec = spec_of(config, arch)
    return {"name": spec.name, "key": spec.key, "document": spec.document}


def expand(request: dict[str, Any]) -> dict[str, Any]:
    """
    Answer `Question.EXPAND`: the kernels of a plan, ``{"plan": name, "configs": [config, ...]}``.

    A plan is the name of a shipped one, or a table with ``problems``; never a path.

    Raises:
        PlanError, ConfigError: There is no such plan, or it is malformed.
    """
    from jitgen.plans.plan import Plan
    from jitgen.plans.plan import configs as plan_configs
    from jitgen.plans.plan import load as load_plan
    from jitgen.plans.plan import names as plan_names
    from jitgen.plans.read import read_sweeps

    asked, arch = request["plan"], Arch.parse(request["arch"])
    if isinstance(asked, str):
        if asked not in plan_names():
            raise PlanError(f"no plan {asked!r}; shipped plans: {', '.join(plan_names())}")
        plan = load_plan(asked)
    elif isinstance(asked, dict) and set(asked) <= {"description", "problems"}:
        sweeps = tuple(read_sweeps(asked.get("problems"), "the plan"))
        if len(sweeps) > _MOST_SWEEPS:
            raise PlanError(
                f"the plan: its lists stand for {len(sweeps)} combinations, and {_MOST_SWEEPS} are "
                "the most that a service takes at once; send it in parts"
            )
        plan = Plan(name="inline", description="", sweeps=sweeps)
    else:
        raise PlanError("a plan is the name of a shipped one, or an object with problems")
    try:
        configs = plan_configs(plan, arch)
    except UnsupportedConfig as error:
        raise ConfigError(str(error)) from error
    return {"plan": plan.name, "configs": [config.to_json() for config in configs]}


ANSWERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Question.EXAMINE: examine,
    Question.EXPAND: expand,
}
"""The function that answers each question; it is handed the whole request."""


def describe() -> dict[str, Any]:
    """
    Return the toolchain, jitgen's version and the targets of this environment, and why it cannot
    compile.
    """
    return {
        "toolchain": toolchain.versions(),
        "jitgen": __version__,
        "targets": [str(arch) for arch in Arch],
        "cannot": toolchain.why_not_compiling(),
    }


def main(descriptor: str, jobs: str, timeout_s: str) -> None:
    """Serve the service at the other end of the socket `descriptor`, then end the process."""
    os.set_inheritable(int(descriptor), False)
    client = socket.socket(fileno=int(descriptor))
    preload([*PRELOAD, _MODULE], list(WITHOUT))
    gc.enable()  # this process lives for weeks
    supervisor = Supervisor(client, int(jobs), float(timeout_s))
    supervisor.say(json.dumps({"hello": describe()}).encode("ascii"))
    supervisor.serve()
    os._exit(0)  # a regular exit with the compiler loaded takes a while
