# SPDX-License-Identifier: Apache-2.0
"""What a worker process serves in tests: kernels that behave as the test says, without torch."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from jitgen.errors import InputError, JitgenError, KernelMiss

VARIABLE = "FAKE_TRIALS"
"""Names the folder of `script.json`, what to do, and `calls`, what was done."""


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class Trials:
    """Does what the script says: ``{"METHOD NAME": action}``, ``{"us NAME": microseconds}``."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[VARIABLE])
        self._script: dict[str, Any] = json.loads((self._folder / "script.json").read_text())

    def open(self, problem: dict[str, Any], arch: str) -> None:
        self._do("open", str(problem["m"]))

    def verify(self, name: str) -> None:
        self._do("verify", name)

    def time(self, names: list[str]) -> list[float]:
        if len(names) > 1:
            self._do("time", "together")
        for name in names:
            self._do("time", name)
        return [self._script.get(f"us {name}", 50.0) for name in names]

    def _do(self, method: str, name: str) -> None:
        with (self._folder / "calls").open("a") as stream:
            stream.write(f"{os.getpid()} {method} {name}\n")
        match self._script.get(f"{method} {name}", self._script.get(method)):
            case "hang":
                time.sleep(600)
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "leave":
                print("no more memory", flush=True)
                os._exit(3)
            case "wrong":
                raise JitgenError("its result is wrong by 1 of the largest value")
            case "raise":
                raise ValueError("an odd\nvalue")
            case "miss":
                raise KernelMiss(name, f"no compiled kernel {name}")
            case "full":
                raise OutOfMemoryError("7 sets of operands")
            case "refuse":
                raise InputError("b", "must have at most 4 groups")
            case None:
                return
