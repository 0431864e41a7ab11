# SPDX-License-Identifier: Apache-2.0
"""
Linkers that are missing, fail, hang or lie.

Any failure of the linker used to publish the object under the key of the library, for good; a
linker that exited with success could publish nothing, half a file, or another kernel.
"""

from __future__ import annotations

import time

from jitgen.compile import linker
from tests.chaos.kernels import CONFIGS, hearing, name_of, prebuilt
from tests.chaos.trouble.stand import (
    Case,
    Place,
    environment,
    patched,
    real_linker,
    served,
)

_PRIVATE = "cannot be linked"


def _with(text: str, *, seconds: float = 60.0) -> Case:
    """Return the case of a linker that does `text`; $REAL is the real one, $FOREIGN a library."""

    def case(place: Place) -> str:
        foreign = place.folder / "foreign.so"
        foreign.write_bytes(prebuilt().good[name_of(CONFIGS[3])])
        path = place.script(f'REAL="{real_linker()}"; FOREIGN="{foreign}"\n{text}')
        start = time.monotonic()
        with (
            environment(CC=str(path)),
            patched(linker, "_TIMEOUT_S", 1.0),
            hearing() as heard,
        ):
            said = served(place, _PRIVATE)
        assert time.monotonic() - start < seconds, "it waited"
        assert len(heard) == 1, heard
        return said

    return case


def _missing(place: Place) -> str:
    with environment(CC=None, PATH=str(place.folder)):
        return served(place, "no C compiler driver")


def _no_program(place: Place) -> str:
    path = place.folder / "cc"
    path.write_text("this is no program")
    path.chmod(0o755)
    with environment(CC=str(path)):
        return served(place, "cannot be run")


def _of_other_builders(place: Place) -> str:
    """Another linker under the same version: what it links is not published beside the first's."""
    served(place)
    for path in place.root.glob("v1/entries/*"):
        path.rename(place.folder / path.name)
    path = place.script(f'# not the one that linked before\nexec "{real_linker()}" "$@"')
    with environment(CC=str(path)), hearing() as heard:
        said = served(place, "is not what first published")
    assert len(heard) == 1 and "jitgen cache adopt" in heard[0], heard
    return said


_ARGUMENTS = 'while [ "$1" != -o ]; do shift; done; OUT=$2; OBJECT=$3; '

CASES: dict[str, Case] = {
    "no linker": _missing,
    "a linker that is no program": _no_program,
    "a linker that fails": _with("echo 'ld: cannot find -lm' >&2; exit 1"),
    "a linker that says a lot": _with("yes | head -c 3000000 >&2; exit 1"),
    "a linker that hangs": _with("sleep 60", seconds=20),
    "a linker whose children hang": _with("sleep 60 & sleep 60", seconds=20),
    "a linker that leaves children behind": _with("sleep 60 & exit 1", seconds=20),
    "a linker that is killed": _with("kill -9 $$"),
    "a linker that leaves nothing": _with("exit 0"),
    "a linker that leaves an empty file": _with(_ARGUMENTS + ': > "$OUT"'),
    "a linker that leaves half the file": _with('"$REAL" "$@"; truncate -s 6000 linked.so; exit 0'),
    "a linker that leaves another library": _with(_ARGUMENTS + 'cp "$FOREIGN" "$OUT"'),
    "a linker that leaves the object": _with(_ARGUMENTS + 'cp "$OBJECT" "$OUT"'),
    "a linker that leaves a folder": _with(_ARGUMENTS + 'mkdir "$OUT"'),
    "a linker that leaves a fifo": _with(_ARGUMENTS + 'mkfifo "$OUT"', seconds=20),
    "a linker that leaves a gigabyte": _with(_ARGUMENTS + 'truncate -s 1G "$OUT"'),
    "another linker than the first publisher's": _of_other_builders,
}
