# SPDX-License-Identifier: Apache-2.0
"""
Decides in which process a compile runs, and which failures are certain.

A compile in this process takes a second less. But in it the compiler may have been set to generate
other code, the stack may be deep, memory may be short, and LLVM ends its process when memory runs
out. So a compile that fails in this process is repeated in a separate process, and only a refusal
there is certain.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from jitgen.compile.toolchain import require_compiler
from jitgen.errors import CompileError, JitgenError, ResourceError, ToolchainError
from jitgen.settings import settings
from jitgen.support import forks
from jitgen.support.boundary import describe, is_from_handler

if TYPE_CHECKING:
    from jitgen.compile.compiler import Artifact
    from jitgen.compile.workers import Stop
    from jitgen.config import Arch, Config


class Where(StrEnum):
    """The process in which a kernel is compiled."""

    AUTO = "auto"
    PROCESS = "process"
    WORKER = "worker"


def usual() -> Where:
    """
    Return the process in which calls compile, by JITGEN_COMPILE.

    ``auto`` means a worker if JITGEN_ON_MISS=fallback: LLVM must not end a process that serves.
    """
    chosen = Where(settings.compile)
    is_serving = chosen is Where.AUTO and settings.on_miss == "fallback"
    return Where.WORKER if is_serving else chosen


def compile_kernel(
    config: Config,
    arch: Arch,
    where: Where,
    *,
    timeout_s: float,
    stop: Stop | None = None,
    text: str = "",
) -> Artifact:
    """
    Render and compile `config` for `arch` in the process that `where` says.

    Args:
        config: Config of the kernel to compile.
        arch: The target.
        where: ``process``: this process. ``worker``: a separate process. ``auto``: this process,
            but a separate one if this one is unfit or the compile fails.
        timeout_s: Time limit of a separate process.
        stop: Object by which another thread ends such a process.
        text: An edited source, instead of the rendered one.

    Raises:
        CompileError: The compiler refused it.
        CompileTimeout: It took too long.
        ResourceError: A resource ran out.
        ToolchainError: The compiler is not installed.
    """
    require_compiler()
    own = None
    if where is not Where.WORKER:
        try:
            return _compile_here(config, arch, text, must=where is Where.PROCESS)
        except ToolchainError:
            raise
        except Exception as error:  # the fault may be this process's
            if is_from_handler(error):
                raise
            if where is Where.PROCESS:
                raise _named(config.name(arch), error) from error
            own = error
    try:
        with forks.idle():
            from jitgen.compile.isolated import compile_isolated

            return compile_isolated(config, arch, timeout_s=timeout_s, stop=stop, text=text)
    except ResourceError as error:
        if isinstance(own, CompileError):
            raise own from error  # the refusal is not certain, but nothing else is known
        raise


class _Unfit(Exception):
    """The process is unfit for compiling."""


def _compile_here(config: Config, arch: Arch, text: str, *, must: bool) -> Artifact:
    from jitgen.codegen.render import source_of
    from jitgen.compile import compiler

    if not must and (reason := compiler.unfit()):
        raise _Unfit(reason)
    return compiler.compile_source(source_of(config, arch, text))


def _named(name: str, error: Exception) -> JitgenError:
    """Return the error of jitgen for an exception of a compile in this process."""
    if isinstance(error, JitgenError):
        return error
    return ResourceError(f"compiling {name}: {describe(error)}")
