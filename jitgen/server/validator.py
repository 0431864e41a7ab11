# SPDX-License-Identifier: Apache-2.0
"""
Validation before signing: a GPU kernel must compute right results in the emulator.

It runs `jitgen verify KEY` on the very bytes that would be signed, in the toolchain's environment
and confined like the compile. That takes seconds to minutes for a kernel, so the operator decides
(``signing.gate``). Kernels for the CPU are not emulated and pass; a kernel that cannot be verified
does not pass.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jitgen.cache import Entry, Store
from jitgen.compile import children
from jitgen.errors import ResourceError
from jitgen.server.confine import Confinement, confined
from jitgen.server.settings import Signing
from jitgen.support.failing import says_passing
from jitgen.support.text import one_line

_SHOWN = 600


class Validator:
    """
    Validates kernels before they are signed.

    Args:
        settings: The settings of signing: whether kernels are validated, and the time limit.
        confinement: Confinement of its processes.
    """

    def __init__(self, settings: Signing, confinement: Confinement) -> None:
        self._settings = settings
        self._confinement = confinement
        self._turn = asyncio.Semaphore(1)  # one validation takes more than a core

    async def refusal(self, entry: Entry, python: Path | None = None) -> str:
        """
        Return why `entry` must not be signed, now or later; empty if it may be.

        Raises:
            ResourceError: It could not be verified: memory, disk or the like ran out.
        """
        if self._settings.gate == "off" or entry.meta.arch == "cpu":
            return ""
        async with self._turn:
            return await asyncio.to_thread(self._verified, entry, python)

    def _verified(self, entry: Entry, python: Path | None) -> str:
        with tempfile.TemporaryDirectory(prefix="jitgen-validate-") as folder:
            root = Path(folder, "cache")
            published = Store.open(root, mode="rw").publish(entry.meta, entry.files)
            if published.why_private:
                raise ResourceError(f"it cannot be verified: {published.why_private}")
            return self._run(entry.key, root, python)

    def _run(self, key: str, root: Path, python: Path | None) -> str:
        command = [str(python or sys.executable), "-P", "-m", "jitgen", "verify", key, "--json"]
        try:
            done = subprocess.run(
                confined([*command, "--jobs", "1"], self._confinement),
                cwd=children.FOLDER,
                env=_environment(root, is_own=python is None),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=self._settings.gate_s,
            )
        except subprocess.TimeoutExpired:
            return f"verifying took more than {self._settings.gate_s:.0f} s"
        except OSError as error:
            raise ResourceError(f"it cannot be verified: {error}") from error
        if done.returncode == 0:
            return ""
        reason = _reason(done.stdout, done.stderr)
        if done.returncode < 0 or says_passing(reason):
            raise ResourceError(f"it cannot be verified: {reason}")
        return reason


def _environment(root: Path, *, is_own: bool) -> Mapping[str, str]:
    given = children.environment()
    found = {name: text for name, text in given.items() if not name.startswith("JITGEN_")}
    path = found.pop("PYTHONPATH", "")
    if is_own:  # it imports jitgen from where this process did
        home = str(Path(__file__).resolve().parents[2])
        found["PYTHONPATH"] = os.pathsep.join([part for part in (path, home) if part])
    return found | {"JITGEN_CACHE_DIR": str(root), "CUDA_VISIBLE_DEVICES": ""}


def _reason(printed: str, said: str) -> str:
    """
    Return what `jitgen verify` found, in one line, from its JSON or else the end of its standard
    error.
    """
    try:
        kernel = json.loads(printed)["kernels"][0]
    except (ValueError, LookupError, TypeError):
        return one_line(said)[-_SHOWN:] or "verifying failed without a word"
    if kernel.get("error"):
        return one_line(str(kernel["error"]))[:_SHOWN]
    for trial in kernel.get("trials", ()):
        if not trial.get("right"):
            places = "; ".join(trial.get("places", ())[:2])
            fault = trial.get("fault") or {}
            words = f"{trial.get('wrong', 0)} wrong values for {trial.get('problem')}"
            return one_line(f"{words} {places} {fault.get('text', '')}")[:_SHOWN]
    return f"it is {kernel.get('state')}"
