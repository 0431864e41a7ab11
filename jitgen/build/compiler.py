# SPDX-License-Identifier: Apache-2.0
"""
Source to artifact; the only module that imports the compiler.

The compiler is not thread-safe, so one lock in the process guards it; parallel compiling takes
processes.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jitgen.build import toolchain
from jitgen.build.render import Source
from jitgen.errors import CompileError, ToolchainError
from jitgen.events import warn_once

_lock = threading.Lock()

_HARMLESS = ("CUTE_DSL_LIBS", "CUTE_DSL_CACHE_DIR", "CUTE_DSL_DISABLE_FILE_CACHING")
"""Variables of the compiler that say where things are, not what is built."""

_LINK_OPTIONS = ("-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,-z,noseparate-code")
"""
Nothing but the object: no start files (a kernel has no constructors, and what it calls of libc is
in every process), no symbols, no padding. That links in half the time, into a tenth less.
"""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

SOURCE_FILE = "kernel.py"
PTX_FILE = "kernel.ptx"


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """
    What one compile left in its folder.

    Attributes:
        symbol: The exported function.
        library: File name of the native code: ``kernel.so``, or ``kernel.o`` where no linker was
            found.
        compile_s: Seconds in the compiler.
        link_s: Seconds in the linker.
    """

    symbol: str
    library: str
    compile_s: float
    link_s: float


def compile_source(
    source: Source, directory: Path, *, keep_ptx: bool = False, line_info: bool = False
) -> Artifact:
    """
    Compile `source` into `directory`, which then holds ``kernel.py`` and the native code.

    Needs no GPU: the target is the source's, whatever this machine has. Holds the process-wide
    compile lock.

    Args:
        source: What to compile.
        directory: An existing folder that belongs to the caller.
        keep_ptx: Write ``kernel.ptx`` too (GPU targets only).
        line_info: Note in the PTX which line of the source each instruction comes from, which
            leaves the instructions as they are.

    Raises:
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source; its own error is the cause.
        OSError: `directory` cannot be written.
    """
    path = directory / SOURCE_FILE
    path.write_text(source.text, encoding="utf-8")
    options = list(toolchain.options(source.arch))
    if keep_ptx:  # the compiler drops a copy of its own, which must not land in the user's folder
        options += ["--keep-ptx", f"--dump-dir '{directory}'"]
    if line_info:
        options += ["--generate-line-info"]
    with _lock, _neutral_environment():
        cute = _import_compiler()
        start = time.perf_counter()
        try:
            module = _module(source, path)
            compiled = cute.compile(
                module.grouped_gemm,
                *module.arguments(),
                options=" ".join(options),
                no_jit_engine=True,  # the artifact is loaded, never run from the compiler's memory
            )
            if keep_ptx and source.arch.is_gpu:
                (directory / PTX_FILE).write_text(compiled.__ptx__, encoding="utf-8")
            compiled.export_to_c(str(directory / "kernel.o"), function_name=source.name)
        except OSError:
            raise  # a full or vanished disk is not the source's fault, and must not be remembered
        except Exception as error:  # the compiler raises RuntimeError and many types of its own
            raise CompileError(source.name, _shortened(error)) from error
        compile_s = time.perf_counter() - start
    start = time.perf_counter()
    library = _link(directory)
    return Artifact(
        symbol=source.name,
        library=library,
        compile_s=compile_s,
        link_s=time.perf_counter() - start,
    )


@contextmanager
def _neutral_environment() -> Iterator[None]:
    """
    Hide CUTE_DSL_* variables from the compiler, which reads them once, when it is first used.

    Most change the code (line information, assertions, optimisation), and no key records them.
    """
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith("CUTE_DSL_") and name not in _HARMLESS
    }
    if hidden and "cutlass" in sys.modules:
        warn_once(
            "compiler environment",
            "%s was set when the compiler was imported, which may have changed what it builds; "
            "unset it, or import jitgen's kernels first",
            ", ".join(hidden),
        )
    try:
        yield
    finally:
        os.environ.update(hidden)


def _import_compiler() -> Any:
    try:
        from cutlass import cute
    except ImportError as error:
        raise ToolchainError(
            f"the compiler cannot be imported ({error}); run: pip install "
            f"'nvidia-cutlass-dsl>=4.8,<4.9', "
            "or prewarm the cache on a machine that has it"
        ) from error
    return cute


def _module(source: Source, path: Path) -> ModuleType:
    """
    Import the generated file: the compiler reads functions through inspect, so it must be a real
    one.
    """
    spec = importlib.util.spec_from_file_location(f"jitgen_generated.{source.name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def _shortened(error: BaseException) -> str:
    """Return the first telling lines of a compiler error, which can be pages long."""
    plain = _COLOUR.sub("", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    text = " ".join(lines[:4]) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


def _link(directory: Path) -> str:
    """Link ``kernel.o`` into ``kernel.so`` and return the file to load."""
    compiler = driver()
    if compiler is None:
        warn_once(
            "linker",
            "no C compiler driver (cc, gcc, clang) was found to link kernels: object files are "
            "kept instead, and "
            "loading them needs the compiler; install gcc",
        )
        return "kernel.o"
    command = [compiler, "-shared", *_LINK_OPTIONS, "-o", "kernel.so", "kernel.o"]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        size = (directory / "kernel.o").stat().st_size
        if shutil.disk_usage(directory).free < 2 * size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        warn_once(
            "linker", "%s failed, object files are kept instead: %s", compiler, done.stderr.strip()
        )
        return "kernel.o"
    (directory / "kernel.o").unlink()
    return "kernel.so"


def driver() -> str | None:
    """Return the system's compiler driver: $CC, or the first of the usual names."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    return None
