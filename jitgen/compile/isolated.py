# SPDX-License-Identifier: Apache-2.0
"""
One compile in a separate process: the task, its answer, and the error that the answer means.

The process has a neutral environment, no other modules and an empty stack. So a refusal there is
certain, while an end by a signal, or for lack of memory, does not mean that the compiler refuses
the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from jitgen.cache.entry import LIMITS, SOURCE
from jitgen.cache.scratch import scratch
from jitgen.codegen.parameters import template_of
from jitgen.codegen.render import source_of
from jitgen.compile import workers
from jitgen.compile.compiler import Artifact, compile_source
from jitgen.compile.workers import Outcome, OutcomeKind, Stop
from jitgen.config import Arch, Config
from jitgen.errors import CompileError, CompileTimeout, JitgenError, ResourceError, ToolchainError
from jitgen.support.documents import read_bounded
from jitgen.templates import digest

TASK = "jitgen.compile.isolated:compile_task"
"""The function that `jitgen.compile.workers.run` calls."""

_REFUSED, _BROKEN, _SHORT = "refused", "broken", "short of something"


def compile_isolated(
    config: Config, arch: Arch, *, timeout_s: float, stop: Stop | None = None, text: str = ""
) -> Artifact:
    """
    Render and compile `config` for `arch` in a process of its own, within `timeout_s` seconds; or
    compile `text`, a source that a person has edited.

    Raises:
        CompileError: The compiler refused it, which is certain.
        CompileTimeout: The time was up.
        ToolchainError: The compiler is not installed, or the linker does not work.
        ResourceError: The process could not be started, ran out of something, or was killed.
    """
    name = config.name(arch)
    with scratch() as directory:
        task = {
            "directory": str(directory),
            "config": config.to_json(),
            "arch": str(arch),
            "text": text,
        }
        try:
            outcomes = list(workers.run(TASK, [task], jobs=1, timeout_s=timeout_s, stop=stop))
        except OSError as error:
            raise ResourceError(f"no process can be started to compile in: {error}") from error
        if not outcomes:
            raise ResourceError(f"compiling {name} was ended")
        answer = _answer(name, outcomes[0])
        if answer["templates"] != digest(template_of(config, arch)):
            raise ResourceError("jitgen was changed while this process runs; start it anew")
        try:
            files = {
                file: read_bounded(directory / file, LIMITS[file])
                for file in (SOURCE, answer["library"])
            }
        except (OSError, ValueError) as error:
            raise ResourceError(f"what {name} became cannot be read: {error}") from error
    return Artifact(
        symbol=name,
        files=files,
        library=answer["library"],
        compile_s=answer["compile_s"],
        link_s=answer["link_s"],
        why_private=answer["why_private"],
    )


class _Answer(TypedDict, total=False):
    """What `compile_task` returns: the fields of an artifact, or the kind of a failure."""

    library: str
    compile_s: float
    link_s: float
    why_private: str
    templates: str
    kind: str
    error: str


def _answer(name: str, outcome: Outcome) -> _Answer:
    """Return the answer of the process, or raise the error that its end means."""
    if outcome.kind is OutcomeKind.TIMEOUT:
        raise CompileTimeout(
            f"compiling {name} took too long: {outcome.error} (JITGEN_COMPILE_TIMEOUT)"
        )
    if outcome.kind is not OutcomeKind.OK:
        raise ResourceError(f"compiling {name}: {outcome.error}")
    answer: _Answer = outcome.result
    match answer.get("kind"):
        case None:
            return answer
        case "refused":
            raise CompileError(name, answer["error"], is_certain=True)
        case "broken":
            raise ToolchainError(answer["error"])
        case _:
            raise ResourceError(f"compiling {name}: {answer['error']}")


class _Task(TypedDict):
    config: object
    arch: str
    text: str
    directory: str


def compile_task(task: _Task) -> _Answer:
    """
    Run the compile of `compile_isolated` in a worker process.

    Returns:
        The fields of the artifact, whose files are left in ``directory``; or ``{"kind": ...,
        "error": ...}``.
    """
    config, arch = Config.from_json(task["config"]), Arch.parse(task["arch"])
    try:
        artifact = compile_source(source_of(config, arch, task["text"]))
        for name, content in artifact.files.items():
            Path(task["directory"], name).write_bytes(content)
    except CompileError as error:
        return {"kind": _REFUSED, "error": error.reason}
    except ToolchainError as error:
        return {"kind": _BROKEN, "error": str(error)}
    except JitgenError as error:
        return {"kind": _SHORT, "error": str(error)}
    except (OSError, MemoryError, RecursionError, SystemError) as error:
        return {"kind": _SHORT, "error": f"{type(error).__name__}: {error}"}
    return {
        "library": artifact.library,
        "compile_s": artifact.compile_s,
        "link_s": artifact.link_s,
        "why_private": artifact.why_private,
        "templates": digest(template_of(config, arch)),
    }
