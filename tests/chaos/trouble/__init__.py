# SPDX-License-Identifier: Apache-2.0
"""
Trouble while compiling: the real compiler, in surroundings where something is wrong.

Each case gets the right kernel, or one clear error. Afterwards, without the trouble, a process must
get the right kernel, and nothing that is wrong, or half, or remembered may be on the disk.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.chaos.kernels import ARCH, in_child, prebuilt, without_torch
from tests.chaos.report import Stage
from tests.chaos.trouble import linkers, processes, shortages, surroundings
from tests.chaos.trouble.stand import CONFIG, Case, Place, no_harm

CASES: dict[str, Case] = {
    **linkers.CASES,
    **shortages.CASES,
    **processes.CASES,
    **surroundings.CASES,
}


def run(quick: bool = True) -> Stage:
    """Do every case, or for `quick` every 24th, in a process that has imported the compiler."""
    stage = Stage("trouble", "right result or one clear error; nothing lasting, nothing wrong kept")
    prebuilt()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        trouble = in_child(lambda: _with_compiler(folder, quick=quick), patience_s=900)
        if trouble:
            stage.fail(trouble)
        for path in sorted(folder.glob("*.said")):
            head, what, said = path.read_text().split("\n", 2)
            stage.case(what, " ".join(said.split()), is_good=head == "ok")
    return stage.end()


def _with_compiler(folder: Path, *, quick: bool) -> None:
    """Import the compiler as jitgen does, and fork a process for each case."""
    without_torch()
    from jitgen.compile import preload  # noqa: F401  # the compiler, as workers have it

    for name in [name for name in os.environ if name.startswith(("JITGEN_", "CUTE_DSL_"))]:
        del os.environ[name]
    reference = Place(folder / "reference", b"")
    assert not in_child(lambda: reference.loader().get(CONFIG, ARCH))
    (good,) = reference.published()
    for number, (what, case) in enumerate(CASES.items()):
        if quick and number % 24:
            continue
        place = Place(folder / str(number), good)
        place.folder.mkdir()
        said = folder / f"{number:02}.said"

        def work(case: Case = case, place: Place = place, what: str = what, said=said) -> None:  # type: ignore[no-untyped-def]
            said.write_text(f"ok\n{what}\n{case(place)}")

        trouble = in_child(work)
        trouble = trouble or in_child(lambda place=place: no_harm(place))  # type: ignore[misc]
        if trouble:
            before = said.read_text().split("\n", 2)[2] if said.exists() else ""
            said.write_text(f"BAD\n{what}\n{trouble} {before}")
