# SPDX-License-Identifier: Apache-2.0
"""What the compiler says against a source, in a few words and with the line."""

from __future__ import annotations

import inspect
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jitgen.errors import CompileError, ResourceError
from jitgen.support.boundary import is_from_handler
from jitgen.support.failing import is_passing

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def refusals(name: str, file: str) -> Iterator[None]:
    """
    Have what the compiler raises about `name` come out as a CompileError, with the line of `file`
    that it was at.

    Its advice about long unrolled loops is no error, whatever the process makes of warnings. What
    says that something has run out comes out as a ResourceError.
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
        raise CompileError(name, _shortened(error) + _where(error, file)) from error
    except SystemExit as error:  # which would end the program, as if it had asked for it
        words = f"it ends its process: SystemExit: {error}"
        raise CompileError(name, words + _where(error, file)) from error


def file_of(function: Any) -> str:
    """Return the file in which a function, or the class of an object, is written; else nothing."""
    for candidate in (function, type(function)):
        with suppress(TypeError, OSError):
            return inspect.getsourcefile(inspect.unwrap(candidate)) or ""
    return ""


def _where(error: BaseException, file: str) -> str:
    """
    Return the line of `file` at which an error was raised, unless it says so itself: the functions
    of a kernel are run to be compiled, and what they raise may tell nothing of where.
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
    if kind.__module__ == "builtins" and kind is not RuntimeError:  # which the compiler raises
        text = f"{kind.__name__}: {text}" if text and text != "None" else kind.__name__
    text = text or kind.__name__
    return text if len(text) <= 400 else text[:397] + "..."
