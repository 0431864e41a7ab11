# SPDX-License-Identifier: Apache-2.0
"""
Checks whether a text is Python that can be compiled, in a separate process, which may crash.

Python's own compiler may end its process: a comprehension of 60,000 loops overflows the stack of
CPython 3.11 and 3.12, and long chains of operators take recursion or memory that a caller needs. So
the check runs in a separate process, in a thread with less stack than any program's; it takes some
15 ms.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import lru_cache

from jitgen.compile import children
from jitgen.errors import ResourceError
from jitgen.support.boundary import on_fresh_stack
from jitgen.support.failing import is_passing
from jitgen.support.text import printable

_TIMEOUT_S = 20.0
_DEEP = "it nests too deeply for Python to compile"

_SCRIPT = """\
import resource, sys, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
text = sys.stdin.buffer.read().decode("utf-8")

def look():
    try:
        compile(text, "source", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        print(getattr(error, "lineno", None) or 0, getattr(error, "msg", error))
    except (RecursionError, MemoryError, SystemError, OverflowError):
        print(0, "")

threading.stack_size(2**19)
thread = threading.Thread(target=look)
thread.start()
thread.join()
"""


@lru_cache(maxsize=16)
def mistake(text: str) -> str:
    """
    Return why `text` is not Python, in one line; empty if it is. No part of it is run.

    Raises:
        ResourceError: No process can be started for the check.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SCRIPT],
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=children.FOLDER,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"Python does not compile it within {_TIMEOUT_S:g} s"
    except OSError as error:
        if is_passing(error):
            raise ResourceError(f"no process can be started to read it: {error}") from error
        return on_fresh_stack(lambda: _look(text))  # a program that has no Python beside it
    if done.returncode == -signal.SIGKILL:
        raise ResourceError("the process that reads it was killed: most likely memory ran out")
    if done.returncode:
        return _DEEP
    said = done.stdout.decode("utf-8", "replace").strip()
    line, _, words = said.partition(" ")
    return _words(words, int(line)) if said else ""


def _look(text: str) -> str:
    """Return why `text` is not Python, as `mistake` does, but checked in this process."""
    try:
        compile(text, "source", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # the latter: a NUL
        return _words(str(getattr(error, "msg", error)), getattr(error, "lineno", None) or 0)
    except (RecursionError, MemoryError, SystemError, OverflowError):
        return _DEEP
    return ""


def _words(words: str, line: int) -> str:
    where = f" (line {line})" if line else ""
    return f"{printable(words)}{where}" if words else _DEEP
