# SPDX-License-Identifier: Apache-2.0
"""
Compiles a source to an artifact in this process; the only module that imports the compiler.

The compiler is not thread-safe, so one lock per process guards it; parallel compiling needs several
processes. A program that imported the compiler before may have set it to generate other code, which
`unfit` detects. Artifacts of such a process are never published.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jitgen.cache.entry import LIBRARY, OBJECT, SOURCE
from jitgen.cache.scratch import scratch
from jitgen.compile import toolchain
from jitgen.compile.linker import LinkError, link
from jitgen.compile.toolchain import flavour, require_compiler
from jitgen.errors import CompileError, ConfigError, ResourceError, ToolchainError
from jitgen.support import forks
from jitgen.support.boundary import is_from_handler
from jitgen.support.failing import is_passing
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.codegen.render import Source

_lock = threading.Lock()

_HARMLESS = ("CUTE_DSL_LIBS", "CUTE_DSL_CACHE_DIR", "CUTE_DSL_DISABLE_FILE_CACHING")
"""Variables of the compiler that name folders and do not change the code."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_LINES = "--generate-line-info"

STREAM = object()
"""Placeholder of the caller's stream in the arguments for compiling."""

_TYPES = {
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "float8_e8m0fnu": "Float8E8M0FNU",
    "int64": "Int64",
    "int32": "Int32",
    "uint8": "Uint8",
}
"""Types of the compiler by those of torch; the emulator supports no others."""

_settings_at_import: dict[str, Any] | None = None
"""The compiler's settings when this module imported it; None if it did not import it."""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@frozen
class Artifact:
    """
    The result of one compile, in memory.

    Attributes:
        symbol: The exported function.
        files: ``kernel.py`` and the native code, by name.
        library: Name of the native code: ``kernel.so``, or ``kernel.o`` if it was not linked.
        compile_s: Seconds in the compiler.
        link_s: Seconds in the linker.
        ptx: The PTX if it was requested; otherwise empty.
        why_private: Why this must not be published, although it works in this process; empty if it
            may be published.
    """

    symbol: str
    files: dict[str, bytes] = field(repr=False)
    library: str
    compile_s: float
    link_s: float
    ptx: str = field(default="", repr=False)
    why_private: str = ""


def compile_source(
    source: Source, *, wants_ptx: bool = False, line_info: bool = False, links: bool = True
) -> Artifact:
    """
    Compile `source` in this process. Needs no GPU: the source names its target.

    Holds the process-wide compile lock. If the linker fails, the artifact has the object, which
    this process can load, and the reason in `why_private`.

    Args:
        source: Source to compile.
        wants_ptx: Whether to keep the PTX (GPU targets only).
        line_info: Record in the PTX the source line of each instruction; this does not change the
            instructions.
        links: Whether to link the object.

    Raises:
        ToolchainError: The compiler is not installed.
        ResourceError: There is no room for its files.
        CompileError: The compiler refused the source; its own error is the cause.
        Exception: MemoryError, RecursionError, OSError: this process or machine lacks a resource;
            the source is not the cause.
    """
    with scratch() as directory:
        path = directory / SOURCE
        path.write_text(source.text, encoding="utf-8")
        with _lock, neutral_environment():
            cute = import_compiler()
            why_private = unfit()
            start = time.perf_counter()
            with refusals(source.name, str(path)):
                ptx = _compile(cute, source, path, wants_ptx=wants_ptx, line_info=line_info)
            compile_s = time.perf_counter() - start
        start = time.perf_counter()
        library, native, trouble = _linked(directory, source.name, links=links)
        return Artifact(
            symbol=source.name,
            files={SOURCE: source.text.encode("utf-8"), library: native},
            library=library,
            compile_s=compile_s,
            link_s=time.perf_counter() - start,
            ptx=ptx,
            why_private=why_private or trouble,
        )


def compile_function(
    function: Any, arguments: Sequence[Any], *, name: str, arch: str
) -> tuple[bytes, str]:
    """
    Compile a function of the user in this process; return a shared library and its PTX.

    Args:
        function: Decorated with ``cute.jit``, or an object whose ``__call__`` is.
        arguments: Arguments for ``cute.compile``. Torch tensors stand for GPU tensors with exactly
            their type, shape and strides, and `STREAM` for the stream of the call.
        name: The symbol that the library is to export.
        arch: The compiler's name of a GPU target, such as ``sm_100a``; it need not be a target of
            jitgen.

    Raises:
        ConfigError: A tensor has a type that kernels do not know.
        ToolchainError: The compiler is not installed, or the library cannot be linked.
        CompileError: The compiler refused the function; its own error is the cause.
        Exception: As `compile_source`.
    """
    with scratch() as directory:
        with _lock, neutral_environment():
            cute = import_compiler()
            given = [_stand_in(argument) for argument in arguments]
            with refusals(name, source_of(function)):
                options = [toolchain.CONVENTION, "--gpu-arch", arch, *_ptx_to(directory), _LINES]
                level = toolchain.base_level()
                made = _exported(cute, function, given, directory / OBJECT, name, options, level)
        _, native, trouble = _linked(directory, name, links=True)
        if trouble:
            raise ToolchainError(trouble)
        return native, str(made.__ptx__)


def _stand_in(argument: Any) -> Any:
    """Return the value to compile with for an argument of a call."""
    from cutlass.cute import runtime

    if argument is STREAM:
        return runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    if type(argument).__module__.partition(".")[0] != "torch":
        return argument
    import cutlass

    dtype = str(argument.dtype).removeprefix("torch.")
    if dtype not in _TYPES:
        raise ConfigError(f"tensors of {dtype} are not known to the compiler: {', '.join(_TYPES)}")
    align = 16 if argument.data_ptr() % 16 == 0 else argument.element_size()
    return runtime.make_fake_tensor(
        getattr(cutlass, _TYPES[dtype]),
        tuple(argument.shape),
        tuple(argument.stride()),
        assumed_align=align,
    )


def _compile(cute: Any, source: Source, path: Path, *, wants_ptx: bool, line_info: bool) -> str:
    """Compile the generated file `path` to an object beside it; return the PTX if it is wanted."""
    options = list(toolchain.options(source.arch))
    options += [*(_ptx_to(path.parent) if wants_ptx else ()), *([_LINES] if line_info else ())]
    module, level = _module(source, path), toolchain.host_level(source.arch)
    entry, given = getattr(module, source.entry), module.arguments()
    made = _exported(cute, entry, given, path.with_name(OBJECT), source.name, options, level)
    return str(made.__ptx__) if wants_ptx and source.arch.is_gpu else ""


def _ptx_to(directory: Path) -> tuple[str, str]:
    """
    Return the options that keep the PTX. The compiler writes a copy to a folder: `directory`, not
    the user's current one.
    """
    return "--keep-ptx", f"--dump-dir '{directory}'"


def _exported(
    cute: Any,
    function: Any,
    arguments: Sequence[Any],
    path: Path,
    name: str,
    options: Sequence[str],
    level: str,
) -> Any:
    """Compile `function` to the object `path`, whose symbol is `name`; return what was compiled."""
    compiled = cute.compile(
        function,
        *arguments,
        options=" ".join(options),
        no_jit_engine=True,  # the artifact is loaded, never run from the compiler's memory
    )
    _set_host_level(compiled.ir_module, level)
    compiled.export_to_c(str(path), function_name=name)
    return compiled


def _set_host_level(module: Any, level: str) -> None:
    """
    Compile the host functions of `module` for `level` instead of this machine's CPU. A function's
    own target overrides that of the code generator, but not its list of features: so the function
    needs such a list, even if it holds only the base of the family.
    """
    from cutlass._mlir import ir

    is_x86 = level.startswith("x86")
    wanted = {
        "target-cpu": level if is_x86 else "generic",
        "target-features": "+sse2" if is_x86 else "+neon",
    }
    with module.context, ir.Location.unknown():
        target = [
            ir.ArrayAttr.get([ir.StringAttr.get(name), ir.StringAttr.get(value)])
            for name, value in wanted.items()
        ]

        def set_target(operation: Any) -> Any:
            if operation.name == "llvm.func":
                attributes = operation.attributes
                known = list(attributes["passthrough"]) if "passthrough" in attributes else []
                attributes["passthrough"] = ir.ArrayAttr.get([*known, *target])
            return ir.WalkResult.ADVANCE

        module.operation.walk(set_target)


def _linked(directory: Path, name: str, *, links: bool) -> tuple[str, bytes, str]:
    """
    Return name and content of the native code, and the reason if it was not linked, else an empty
    text.
    """
    trouble = "they are not linked"
    if links:
        try:
            return LIBRARY, link(directory, OBJECT, f"__tvm_ffi_{name}"), ""
        except LinkError as error:
            trouble = f"they cannot be linked: {error}"
    return OBJECT, (directory / OBJECT).read_bytes(), trouble


@contextmanager
def neutral_environment() -> Iterator[None]:
    """
    Hide CUTE_DSL_* variables from the compiler, which reads them once, when it is first used.

    Most change the code (line information, assertions, optimisation), and no key records them.
    """
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith("CUTE_DSL_") and name not in _HARMLESS
    }
    try:
        yield
    finally:
        os.environ.update(hidden)


def import_compiler() -> Any:
    """
    Return the compiler; the first call must be in `neutral_environment`.

    Raises:
        ToolchainError: It is not installed.
    """
    global _settings_at_import
    require_compiler()
    is_first = "cutlass" not in sys.modules
    try:
        from cutlass import cute
    except ImportError as error:
        raise ToolchainError(
            f"the compiler cannot be imported ({error}); run: pip install "
            f"'nvidia-cutlass-dsl>=4.8,<4.9', "
            "or prewarm the cache on a machine that has it"
        ) from error
    forks.wait_before("cutlass")
    if is_first:
        _settings_at_import = _compiler_settings()
    return cute


def unfit() -> str:
    """
    Return why artifacts of this process's compiler must not be published; empty if they may be.
    """
    if "cutlass" not in sys.modules:
        return ""
    if _settings_at_import is None:
        return "the compiler was imported by other code, which may have changed its settings"
    if other := _other_generator():
        return other
    now = _compiler_settings()
    changed = sorted(
        name
        for name in now.keys() | _settings_at_import.keys()
        if now.get(name) != _settings_at_import.get(name)
    )
    return f"settings of the compiler were changed: {', '.join(changed)}" if changed else ""


def _other_generator() -> str:
    """Return a reason if the code generator is not the one in keys; else an empty text."""
    generator = sys.modules.get("cutlass._mlir._mlir_libs._cutlass_ir")
    path = str(getattr(generator, "__file__", ""))
    used = re.search(r"\.cu(\d+)\.", Path(path).name)
    if used is None or int(used[1]) == flavour():
        return ""
    return f"the compiler uses its code generator for CUDA {used[1]}, and keys name {flavour()}"


def _compiler_settings() -> dict[str, Any]:
    """
    Return the settings that the compiler took from its environment, without the target, which each
    compile passes.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    found = dict(vars(CuTeDSL._get_dsl().envar))
    found.pop("_arch", None)
    return found


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


@contextmanager
def refusals(name: str, file: str) -> Iterator[None]:
    """
    Turn errors of the compiler about `name` into a CompileError that names the line of `file`.

    Its advice about long unrolled loops is no error, even if the process turns warnings into
    errors. An error that says that something has run out becomes a ResourceError.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This static loop has")
            yield
    except (OSError, MemoryError, RecursionError, SystemError):
        raise  # not the source's fault, and must not be remembered
    except Exception as error:  # the compiler raises RuntimeError and many types of its own
        if is_from_handler(error):
            raise
        if is_passing(error):  # it says so in the system's words: no thread, no memory, no disk
            raise ResourceError(f"compiling {name}: {_shortened(error)}") from error
        raise CompileError(name, _shortened(error) + _line_of(error, file)) from error
    except SystemExit as error:  # it would end the program
        words = f"it ends its process: SystemExit: {error}"
        raise CompileError(name, words + _line_of(error, file)) from error


def source_of(function: Any) -> str:
    """Return the file that defines a function, or the class of an object; empty if unknown."""
    for candidate in (function, type(function)):
        with suppress(TypeError, OSError):
            return inspect.getsourcefile(inspect.unwrap(candidate)) or ""
    return ""


def _line_of(error: BaseException, file: str) -> str:
    """
    Return a text with the line of `file` at which an error was raised; empty if the message has
    that. The compiler runs the functions of a kernel, and their errors may not name a line.
    """
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    if not frames or f"{file}:" in str(error):
        return ""
    last = frames[-1]
    return f" (at {file}:{last.lineno}, in {last.name})"


def _shortened(error: BaseException) -> str:
    """Return the first telling lines of a compiler error, which can be pages long."""
    plain = _COLOUR.sub("", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    kind = type(error)
    text = " ".join(lines[:4])
    if kind.__module__ == "builtins" and kind is not RuntimeError:  # the compiler's own
        text = f"{kind.__name__}: {text}" if text and text != "None" else kind.__name__
    text = text or kind.__name__
    return text if len(text) <= 400 else text[:397] + "..."
