# SPDX-License-Identifier: Apache-2.0
"""Surroundings: clocks, variables, home folders, working folders, other people's settings."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from jitgen.cache import Store
from jitgen.compile import compiler, provenance, toolchain
from jitgen.errors import CompileError, RememberedFailure, UnsafeCacheRoot
from jitgen.runtime.session import current
from jitgen.runtime.spec import key
from jitgen.settings import settings
from tests.chaos.kernels import ARCH, IMPORTS, hearing, in_child, pretending, warm_up
from tests.chaos.trouble.stand import (
    CONFIG,
    Case,
    Place,
    environment,
    patched,
    refused,
    served,
)

_DAY_S, _YEAR_S = 86400.0, 31_536_000.0


def _fresh(place: Place, before: str = "", **variables: str) -> str:
    """Get the kernel in a new interpreter, after `before`; return what it says of it."""
    script = f"""
import sys, logging, hashlib
sys.modules["torch"] = None
logging.basicConfig(format="%(message)s")
{before}
import jitgen
from jitgen.config.grouped_gemm import GroupedGemmConfig
kernel = jitgen.get_kernel(GroupedGemmConfig.parse({CONFIG.name(ARCH)!r})[0], "cpu")
print(kernel.tier, hashlib.sha256(kernel.entry.library).hexdigest(), kernel.entry.why_private)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=place.folder,
        env={
            **os.environ,
            "JITGEN_CACHE_DIR": str(place.root),
            **variables,
            "PYTHONPATH": IMPORTS,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout + done.stderr


def _is_good(place: Place, said: str) -> bool:
    import hashlib

    return hashlib.sha256(place.good).hexdigest() in said


def _polluted(place: Place) -> str:
    """
    The compiler was told to keep line numbers before jitgen was imported, which used to publish
    other bytes, three times as many, under the same key.
    """
    said = _fresh(place, "import cutlass.cute", CUTE_DSL_LINEINFO="1")
    assert _is_good(place, said), said
    assert place.published() == [place.good]
    return "compiled in a process of its own, the same bytes as ever"


def _polluted_here(place: Place) -> str:
    said = _fresh(place, "import cutlass.cute", CUTE_DSL_LINEINFO="1", JITGEN_COMPILE="process")
    assert not place.published(), "it was published"
    assert "are not kept" in said, said
    return " ".join(said.split("\n", 1)[1].split())


def _variables(place: Place) -> str:
    """Variables of the compiler, set before everything."""
    said = _fresh(
        place, "", CUTE_DSL_LINEINFO="1", CUTE_DSL_OPT_LEVEL="0", CUTE_DSL_ENABLE_ASSERTIONS="1"
    )
    assert _is_good(place, said) and place.published() == [place.good], said
    return "the same bytes as ever"


def _settings_changed(place: Place) -> str:
    """Other code changes the compiler's settings between two compiles of one process."""
    from cutlass.cutlass_dsl import CuTeDSL

    with patched(CuTeDSL._get_dsl().envar, "lineinfo", True):
        assert "lineinfo" in compiler.unfit()
        return served(place)


def _working_folder(place: Place) -> str:
    """A json.py in the working folder used to run in every compile process."""
    mark = place.folder / "ran"
    for name in ("json", "subprocess", "cutlass", "struct"):
        (place.folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\nraise SystemExit\n")
    here = os.getcwd()
    os.chdir(place.folder)
    try:
        with settings.scope(compile="worker"), environment(PYTHONPATH=f":.:{IMPORTS}"):
            said = served(place)
    finally:
        os.chdir(here)
    assert not mark.exists(), "it ran"
    return said


def _working_folder_gone(place: Place) -> str:
    gone, here = place.folder / "gone", os.getcwd()
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        with settings.scope(compile="worker"):
            return served(place)
    finally:
        os.chdir(here)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise CompileError("kernel", "refused", is_certain=True)


def _clock_back(place: Place) -> str:
    """A failure that was remembered when the clock was a year ahead used to last that year."""
    from jitgen.compile import compile as compiling

    now = time.time
    with (
        patched(compiling, "compile_kernel", _refuse),
        patched(time, "time", lambda: now() + _YEAR_S),
    ):
        refused(place, CompileError)
        refused(place, RememberedFailure)
    said = served(place)
    return f"forgotten as the clock went back; {said}"


def _clock_forward(place: Place) -> str:
    from jitgen.compile import compile as compiling

    now = time.time
    with patched(compiling, "compile_kernel", _refuse):
        refused(place, CompileError)
    refused(place, RememberedFailure)
    with patched(time, "time", lambda: now() + 1.1 * _DAY_S):
        return f"forgotten a day later; {served(place)}"


def _entry_of_tomorrow(place: Place) -> str:
    """An entry that was written when the clock was ahead used to stay for ever."""
    served(place)
    (entry,) = place.root.glob("v1/entries/*/*")
    os.utime(entry, (time.time() + _YEAR_S, time.time() + _YEAR_S))
    assert served(place).endswith("(disk)")
    os.utime(entry, (time.time() + _YEAR_S, time.time() + _YEAR_S))
    assert len(Store.open(place.root).prune(1).removed) == 1
    return "served, then pruned like any other"


def _no_home(place: Place) -> str:
    """A container with a random user: no HOME, no account. It used to raise RuntimeError."""
    warm_up()

    def work() -> None:

        for name in ("HOME", "XDG_CACHE_HOME", "JITGEN_CACHE_DIR"):
            os.environ.pop(name, None)
        with pretending(), hearing() as said:
            current.get().reset()
            kernel = current.get().get_kernel(CONFIG, ARCH)
        assert "JITGEN_CACHE_DIR" in " ".join(said), said
        assert len(said) == 1, said
        assert kernel.entry.why_private

    trouble = in_child(work, user=1_234_567)
    assert not trouble, trouble
    return "served, not kept, one line that says what to set"


def _roots_index(place: Place) -> str:
    """`sudo jitgen cache stats` leaves an index that is root's; every cold call used to fail."""
    if os.geteuid():
        return "left out: needs root"
    warm_up()
    user = 20_004

    def use() -> None:
        with pretending():
            for _ in range(2):
                kernel = place.loader().get(CONFIG, ARCH)
        assert kernel.tier == "disk", kernel.entry.why_private

    place.folder.chmod(0o755)
    place.root.mkdir()
    os.chown(place.root, user, user)
    assert not (said := in_child(use, user=user)), said
    with pytest.raises(UnsafeCacheRoot, match=f"belongs to user {user}"):
        Store.open(place.root)  # root does not load what a user could change
    for path in place.root.glob("v1/index/*"):
        os.chown(path, 0, 0)
        path.chmod(0o600 if path.is_file() else 0o700)
    os.chown(place.root / "v1" / "index", 0, 0)

    def again() -> None:
        Store.open(place.root).remove(key(CONFIG, ARCH))
        use()

    assert not (said := in_child(again, user=user)), said
    shutil.rmtree(place.root)
    return "removed, compiled and served by its owner"


def _no_compiler(place: Place) -> str:
    """The compiler cannot be imported, as in an image without it, or with half of it."""
    shadow = place.folder / "shadow" / "cutlass"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('libcute.so: no such file')")
    refused_here = f"""
import sys
sys.path.insert(0, {str(shadow.parent)!r})
import jitgen
from jitgen.errors import ToolchainError
from jitgen.config.grouped_gemm import GroupedGemmConfig
try:
    jitgen.get_kernel(GroupedGemmConfig.parse({CONFIG.name(ARCH)!r})[0], "cpu")
except ToolchainError as error:
    print("refused:", error)
sys.path.remove({str(shadow.parent)!r})
"""
    said = _fresh(place, refused_here)
    assert said.startswith(f"refused: {CONFIG.name(ARCH)}: the compiler cannot be imported"), said
    assert _is_good(place, said), said
    return said.splitlines()[0]


def _unreadable_cpu(place: Place) -> str:
    """A /proc/cpuinfo that says nothing used to mean that code for any processor may run."""
    place.get()
    hide = "from jitgen.compile import toolchain as t; t._CPUINFO = t.Path('/missing')"
    said = [_fresh(place, hide, JITGEN_CACHE_DIR=str(place.folder / "other")) for _ in range(2)]
    assert [text.split()[0] for text in said] == ["compiled", "disk"], said
    assert _fresh(place, hide, JITGEN_ON_MISS="compile").startswith("compiled"), "it ran wide code"
    shutil.rmtree(place.root)
    return f"compiled for {toolchain.LEVELS[platform.machine()][0][0]}, from its own key"


def _other_compiler(place: Place) -> str:
    """A patched compiler under the same version serves its own process and publishes nothing."""
    served(place)
    for path in place.root.glob("v1/entries/*"):
        path.rename(place.folder / path.name)
    with (
        patched(provenance, "builder", lambda _: {"compiler": "0" * 64, "linker": "1" * 64}),
        hearing() as heard,
    ):
        said = served(place, "is not what first published")
        served(place, "is not what first published")
    assert len(heard) == 1 and "jitgen cache adopt" in heard[0], heard
    return said


def _cache_off(place: Place) -> str:
    with settings.scope(cache="off"):
        kernel: Any = place.get()
    assert place.is_right(kernel) and not place.root.exists()
    return "served right, nothing written"


def _broken_pipe(place: Place) -> str:
    """No process reads standard error any more, and logging goes there."""
    read, write = os.pipe()
    os.close(read)
    before = os.dup(2)
    os.dup2(write, 2)
    try:
        with environment(CC=str(place.script("exit 1"))), suppress(BrokenPipeError):
            return served(place, "cannot be linked")
    finally:
        os.dup2(before, 2)
    raise AssertionError("a broken pipe came through")


CASES: dict[str, Case] = {
    "the compiler was told other things before": _polluted,
    "the compiler was told other things before, and has to compile here": _polluted_here,
    "variables of the compiler": _variables,
    "settings of the compiler are changed": _settings_changed,
    "modules in the working folder": _working_folder,
    "no working folder": _working_folder_gone,
    "a clock that is set back": _clock_back,
    "a clock that is set forward": _clock_forward,
    "an entry of tomorrow": _entry_of_tomorrow,
    "no home folder": _no_home,
    "an index of root's": _roots_index,
    "no compiler": _no_compiler,
    "a processor that cannot be read": _unreadable_cpu,
    "another compiler of the same version": _other_compiler,
    "no cache": _cache_off,
    "the log has no reader": _broken_pipe,
}
