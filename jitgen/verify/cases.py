# SPDX-License-Identifier: Apache-2.0
"""
The calls of a user's kernel in a file for `jitgen verify FILE.py`.

Such a file defines ``verify_cases()``, which returns or yields a `Case` for each call. It is a
Python program, and reading its cases runs it, like ``python FILE.py``.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from jitgen.emulator import ELEMENTS, NUM_SMS
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

FUNCTION = "verify_cases"
"""Name of the function that a file with cases defines."""

STREAM = object()
"""Placeholder for the stream of the call."""


@frozen
class Case:
    """
    One call of a kernel.

    Attributes:
        arguments: Arguments of the entry, by name: torch tensors in host memory, which also receive
            the results, and numbers. For a compiled artifact they must be in order.
        entry: A function with ``cute.jit``, or an object whose ``__call__`` has it; None for a
            compiled kernel. A parameter called ``stream``, or annotated ``CUstream``, gets the
            stream of the call.
        name: Its name in messages; if empty, ``case 0``, ``case 1``, ...
        constants: Values of parameters that are annotated ``Constexpr``, by name.
        samples: Objects to compile with instead of a tensor's own type and sizes, by name, such as
            a ``make_fake_tensor`` with symbolic sizes. Cases of one entry with the same sizes, or
            the same samples, share a kernel.
        expected: Expected contents of arguments after the call, by name.
        rtol, atol: Allowed difference of a value: ``atol + rtol * abs(expected)``.
        check: Called after the kernel with the arguments by name; raises AssertionError if a result
            is wrong.
        unknown: Names of tensors that count as uninitialised until the kernel has written them,
            such as outputs and workspaces from ``torch.empty``. Reading them before is a finding.
        settled: For kernels that may start before an earlier kernel has ended: names of tensors
            that no earlier kernel still writes, so that this one may read them before
            griddepcontrol.wait.
        tile: Rows and columns that one CTA computes; wrong values are reported tile by tile.
        num_sms: Number of SMs that the entry finds.
    """

    arguments: Mapping[str, Any]
    entry: Any = None
    name: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    rtol: float = 0.0
    atol: float = 0.0
    check: Callable[[Mapping[str, Any]], None] | None = None
    unknown: Collection[str] = ()
    settled: Collection[str] = ()
    tile: tuple[int, int] | None = None
    num_sms: int = NUM_SMS

    @property
    def title(self) -> str:
        """The entry's name; empty where there is none."""
        named = getattr(self.entry, "__name__", "") or type(self.entry).__name__
        return "" if self.entry is None else named

    def __str__(self) -> str:
        """Return the names of the arguments, with type and sizes, or the value of a number."""
        return ", ".join(f"{name} {_words(value)}" for name, value in self.arguments.items())


@frozen
class Parameters:
    """
    The parameters of an entry, in their order.

    Attributes:
        compiled: The value that the entry is compiled with, by name: an argument, a sample, a
            constant, or `STREAM`.
        called: Names of the parameters that a call passes.
    """

    compiled: Mapping[str, Any]
    called: tuple[str, ...]


def load(path: Path) -> list[Case]:
    """
    Run the file `path` and return its cases, each checked.

    Its folder is first on the import path, as for ``python FILE.py``.

    Raises:
        ConfigError: The file raises, has no `FUNCTION`, or that function returns no cases.
    """
    sys.path.insert(0, str(path.parent))
    try:
        function = getattr(_module(path), FUNCTION, None)
        made = function() if callable(function) else None
        found = list(made) if isinstance(made, Iterable) else None
    except (Exception, SystemExit) as error:
        raise ConfigError(_raised(path, error)) from error
    finally:
        sys.path.remove(str(path.parent))
    if not callable(function):
        raise ConfigError(f"{path.name} defines no {FUNCTION}(); see docs/verify.md")
    if found is None:
        raise ConfigError(
            f"{FUNCTION}() of {path.name} returns {shown(made)}; it must return, or yield, cases"
        )
    if not found:
        raise ConfigError(f"{FUNCTION}() of {path.name} returns no cases")
    for number, case in enumerate(found):
        if not isinstance(case, Case):
            raise ConfigError(
                f"{FUNCTION}() of {path.name} returns {shown(case)}; each must be a "
                "jitgen.verify.Case"
            )
        name = case.name or f"case {number}"
        for problem in _problems(case):
            raise ConfigError(f"{path.name}, {name}: {problem}")
    return found


def parameters(case: Case) -> Parameters:
    """
    Return the parameters of the case's entry.

    Raises:
        ConfigError: The parameters differ from those that the case gives.
    """
    try:
        wanted = inspect.signature(case.entry).parameters
    except (TypeError, ValueError):
        raise ConfigError(f"entry {shown(case.entry)} is no function with cute.jit") from None
    if strangers := sorted({*case.arguments, *case.constants} - wanted.keys()):
        raise ConfigError(f"{case.title}() has no parameter {strangers[0]!r}: {', '.join(wanted)}")
    compiled = {name: _compiled_with(case, parameter) for name, parameter in wanted.items()}
    return Parameters(compiled=compiled, called=tuple(x for x in wanted if x in case.arguments))


def _compiled_with(case: Case, parameter: inspect.Parameter) -> Any:
    """Return the value that the entry is compiled with for a parameter."""
    name, annotation = parameter.name, str(parameter.annotation)
    if name in case.arguments:
        return case.samples.get(name, case.arguments[name])
    if name in case.constants:
        if "Constexpr" not in annotation and case.constants[name] is not None:
            raise ConfigError(f"constant {name!r} of {case.title}() is not a Constexpr there")
        return case.constants[name]
    if name == "stream" or "CUstream" in annotation:
        return STREAM
    if parameter.default is not parameter.empty:
        return parameter.default
    raise ConfigError(
        f"{case.title}() has a parameter {name!r}, which neither arguments nor constants give"
    )


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"jitgen_verified.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and the compiler look there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def _raised(path: Path, error: BaseException) -> str:
    """Return the error of a file and its place, in a line."""
    places = traceback.extract_tb(error.__traceback__)
    line = next((x.lineno for x in reversed(places) if x.filename == str(path)), None)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    where = f", line {line}," if line else ""
    words = " ".join(str(error).split())
    return f"{path.name}{where} raises {type(error).__name__}: {words}"


def _problems(case: Case) -> Iterator[str]:
    """Yield the faults of a case, before anything is compiled."""
    for name, value in case.arguments.items():
        if not isinstance(value, (Tensor, int, float)):
            yield f"argument {name!r} must be a torch tensor or a number, not {shown(value)}"
        if isinstance(value, Tensor) and value.device.type != "cpu":
            yield f"argument {name!r} must be in host memory, not on {value.device}"
        if isinstance(value, Tensor) and value.dtype not in ELEMENTS:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in ELEMENTS)
            yield f"argument {name!r} must be of {known}, not {_words(value)}"
    tensors = {name: x for name, x in case.arguments.items() if isinstance(x, Tensor)}
    for what in ("expected", "unknown", "settled", "samples"):
        for name in getattr(case, what):
            if name not in (case.arguments if what == "samples" else tensors):
                yield f"{what} names {name!r}, which is no tensor of its arguments"
    for name, value in case.expected.items():
        if not isinstance(value, Tensor) or value.shape != tensors[name].shape:
            shape = tuple(tensors[name].shape)
            yield f"expected {name!r} must be a tensor of shape {shape}, not {_words(value)}"


def _words(value: Any) -> str:
    if not isinstance(value, Tensor):
        return shown(value)
    sizes = " x ".join(map(str, value.shape)) or "scalar"
    return f"{str(value.dtype).removeprefix('torch.')} {sizes}"
