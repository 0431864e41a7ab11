# SPDX-License-Identifier: Apache-2.0
"""
Kernels whose every byte is known: tiny shared libraries that return a number each.

They go through the product's own path: key, lock, publish, read, check, load, call. Only compiling
is replaced, by a copy of prebuilt bytes after a pause. A foreign twin of each returns another
number and leaves a mark when it is merely loaded, so that a foreign byte that runs is seen.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from jitgen.cache import Store
from jitgen.compile import compile as compiling
from jitgen.compile import provenance
from jitgen.compile.compiler import Artifact
from jitgen.config import Arch, Layout
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.loader import KernelLoader

REPOSITORY = Path(__file__).parents[2]
IMPORTS = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
"""Value of PYTHONPATH for the processes of an attack."""

ARCH = Arch.CPU
FOREIGN = -666
MARK = "JITGEN_CHAOS_MARK"
_FIRST = 1000

CONFIGS = tuple(
    GroupedGemmConfig(
        layout=layout, operands=Operands(scale_granularity=scales), tile=Tile(m=m, n=64, k=128)
    )
    for layout, scales, m in itertools.product(Layout, FLOAT_SCALES, (8, 16, 32))
)[:20]

_PLACEHOLDER = 0x6A69_7467_656E_0001
_SOURCE = f"""
#include <stdint.h>
typedef struct {{ int32_t type; uint32_t pad; int64_t value; }} Any;
static const volatile int64_t answer = {_PLACEHOLDER};
int run(void *self, const Any *args, int32_t count, Any *result) {{
    result->type = 1; result->pad = 0; result->value = answer;
    return 0;
}}
"""
_MARKER = f"""
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void) {{
    const char *path = getenv("{MARK}");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (file >= 0) {{ (void)!write(file, "foreign\\n", 8); close(file); }}
}}
"""


def name_of(config: GroupedGemmConfig) -> str:
    return config.name(ARCH)


def answer_of(config: GroupedGemmConfig) -> int:
    """Return what the kernel of `config` returns."""
    return _FIRST + CONFIGS.index(config)


@dataclass(frozen=True)
class Prebuilt:
    """
    The libraries, by the names of their kernels.

    Attributes:
        good: The library that a compile of each kernel gives.
        foreign: Twins that no compile gave.
    """

    good: dict[str, bytes] = field(repr=False)
    foreign: dict[str, bytes] = field(repr=False)


@functools.cache
def prebuilt() -> Prebuilt:
    """Build all libraries: two are compiled, and linked under other names with other answers."""
    good, foreign = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        ours = _compiled(Path(folder, "ours.o"), _SOURCE)
        theirs = _compiled(Path(folder, "theirs.o"), _MARKER + _SOURCE)
        for config in CONFIGS:
            name = name_of(config)
            good[name] = _linked(ours, name, answer_of(config))
            foreign[name] = _linked(theirs, name, FOREIGN)
    return Prebuilt(good=good, foreign=foreign)


def _compiled(path: Path, text: str) -> Path:
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["gcc", "-c", "-fPIC", "-O1", "-o", str(path), str(source)], check=True)
    return path


def _linked(path: Path, name: str, answer: int) -> bytes:
    """Return a library whose kernel `name` returns `answer`."""
    library = path.with_suffix(".so")
    command = [_linker(), "-shared", "-s", f"--defsym=__tvm_ffi_{name}=run"]
    subprocess.run([*command, "-o", str(library), str(path)], check=True)
    before, _, after = library.read_bytes().partition(_PLACEHOLDER.to_bytes(8, sys.byteorder))
    return before + answer.to_bytes(8, sys.byteorder, signed=True) + after


@functools.cache
def _linker() -> str:
    """Return the path of the linker that gcc calls: gcc in front of it takes four times as long."""
    command = ["gcc", "-print-prog-name=ld"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def without_torch() -> None:
    """Keep torch out of this process: tvm-ffi imports it wherever it can, for a second."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


@contextmanager
def pretending(least_s: float = 0.0, most_s: float = 0.0) -> Iterator[list[str]]:
    """
    Have compiles give prebuilt bytes, after a pause; yields the names that were compiled.

    The content digests of the compiler are left out: they take a fifth of a second.
    """
    ready, compiled = prebuilt(), list[str]()

    def compile_kernel(config: GroupedGemmConfig, arch: Arch, *_: object, **__: object) -> Artifact:
        name = config.name(arch)
        compiled.append(name)
        time.sleep(random.uniform(least_s, most_s))
        return Artifact(
            symbol=name,
            files={"kernel.py": f"# {name}\n".encode(), "kernel.so": ready.good[name]},
            library="kernel.so",
            compile_s=0.1,
            link_s=0.01,
        )

    real = compiling.compile_kernel, provenance.builder
    compiling.compile_kernel = compile_kernel  # type: ignore[assignment]
    provenance.builder = lambda _: {"compiler": "0" * 64, "linker": "1" * 64}
    try:
        yield compiled
    finally:
        compiling.compile_kernel, provenance.builder = real


def loader(root: Path) -> KernelLoader:
    """Return a loader with nothing in memory over `root`."""
    return KernelLoader(Store.open(root))


def result_of(kernel: Kernel) -> int:
    """Return what `kernel` returns."""
    return int(kernel.function())


class Mark:
    """The file in which foreign code leaves its mark."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mark"
        os.environ[MARK] = str(self.path)

    @property
    def is_there(self) -> bool:
        """Whether foreign code ran."""
        return self.path.exists()


def fill(root: Path, count: int = len(CONFIGS)) -> Store:
    """Return a store under `root` into which another process has put the first `count` kernels."""

    def work() -> None:
        with pretending():
            subject = loader(root)
            for config in CONFIGS[:count]:
                subject.get(config, ARCH)

    code = in_child(work)
    if code:
        raise RuntimeError(f"the store could not be filled: {code}")
    return Store.open(root)


def warm_up() -> None:
    """
    Import all that serving takes, and load the runtime library: a child that becomes another user
    may not be able to read Python's own folder any more.
    """
    without_torch()
    with tempfile.TemporaryDirectory() as folder, pretending():
        root = Path(folder, "cache")
        for _ in range(2):
            result_of(loader(root).get(CONFIGS[0], ARCH))
        store = Store.open(root)
        store.stats()
        store.verify()
        key = loader(root).get(CONFIGS[0], ARCH).key
        (root / "v1" / "entries" / key[:2] / key / "kernel.so").unlink()
        store.read(key)
        store.index.remember_failure(key, "a name", "a reason", 60)
        store.prune(1)
        store.remove(key)
        store.clear()
        store.index.close()


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Yield the warnings of the with block."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("jitgen")
    log.addHandler(handler)
    try:
        yield heard
    finally:
        log.removeHandler(handler)


def in_child(work: Callable[[], object], *, user: int | None = None, patience_s: int = 120) -> str:
    """
    Do `work` in a forked child, as `user` if given, and return how that ended; it is killed after
    `patience_s` seconds.

    Empty if it returned; else the exception, or the signal that ended the process.
    """
    prebuilt()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        without_torch()
        said = ""
        try:
            signal.alarm(patience_s)
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
        except BaseException as error:  # whatever it is, it is the result
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or (f"ended by {code}" if code else "")
