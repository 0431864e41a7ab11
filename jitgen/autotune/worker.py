# SPDX-License-Identifier: Apache-2.0
"""
The process in which kernels are measured; `jitgen.autotune.process` starts it, and may kill it.

Requests and answers are JSON over a socket, one document per line: a request has the name of a
method and its arguments, and the answer has the return value or the error. The process ends when
the socket is closed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import socket
from typing import TypedDict

from jitgen.errors import JitgenError
from jitgen.support.failing import is_passing

_PR_SET_PDEATHSIG = 1


def main(descriptor: str, trials: str, parent: str) -> None:
    """
    Answer the requests on the socket `descriptor` by calling the methods of an object of class
    `trials`, ``pkg.mod:Name``, unless process `parent` has ended.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return  # the parent has ended and waits for no answer
    faulthandler.enable()
    module, _, name = trials.partition(":")
    with socket.socket(fileno=int(descriptor)) as client, client.makefile("rb") as lines:
        served = getattr(importlib.import_module(module), name)()
        for line in lines:
            client.sendall(json.dumps(_answer(served, json.loads(line))).encode("ascii") + b"\n")
    os._exit(0)  # taking down an interpreter with torch in it takes a while


class _Request(TypedDict):
    """A call: a method of the served object, and its arguments."""

    method: str
    arguments: list[object]


def _answer(served: object, request: _Request) -> dict[str, object]:
    try:
        result = getattr(served, request["method"])(*request["arguments"])
    except Exception as error:  # anything that a kernel raises is the answer
        kind = type(error).__name__
        text = str(error) if isinstance(error, JitgenError) else f"{kind}: {error}"
        said = " ".join(text.split())
        return {"error": said, "kind": kind, "is_passing": is_passing(error)}
    return {"result": result}
