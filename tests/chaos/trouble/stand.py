# SPDX-License-Identifier: Apache-2.0
"""What the cases of trouble stand on: a place, a kernel to compile, what must hold afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jitgen.cache import Store
from jitgen.compile.linker import driver
from jitgen.errors import JitgenError
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.loader import KernelLoader
from tests.chaos.kernels import ARCH, CONFIGS

CONFIG, OTHER = CONFIGS[0], CONFIGS[1]


@dataclass(frozen=True)
class Place:
    """
    Where a case happens.

    Attributes:
        folder: A folder of its own.
        good: What a compile without trouble gives: the bytes of the library of `CONFIG`.
    """

    folder: Path
    good: bytes

    @property
    def root(self) -> Path:
        """The root of the cache."""
        return self.folder / "cache"

    def loader(self) -> KernelLoader:
        """Return a loader with nothing in memory."""
        return KernelLoader(Store.open(self.root))

    def get(self) -> Kernel:
        """Return the kernel as a process gets it that has nothing in memory."""
        return self.loader().get(CONFIG, ARCH)

    def is_right(self, kernel: Kernel) -> bool:
        """Whether `kernel` is what a compile without trouble gives, and can be called."""
        return kernel.entry.library == self.good and callable(kernel.function)

    def published(self) -> list[bytes]:
        """Return the libraries that the cache holds."""
        return [path.read_bytes() for path in self.root.glob("v1/entries/*/*/kernel.*o")]

    def script(self, text: str, name: str = "cc") -> Path:
        """Write a program."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path


Case = Callable[[Place], str]


def refused(place: Place, *kinds: type[JitgenError]) -> str:
    """Ask for the kernel, which must be refused with one clear line; return that."""
    try:
        kernel = place.get()
    except JitgenError as caught:
        error = caught
    else:
        raise AssertionError(f"{kernel.name} was served ({kernel.tier})")
    text = str(error)
    assert isinstance(error, kinds), f"{type(error).__name__}: {text}"
    assert 0 < len(text) < 700 and "\n" not in text, text
    return f"{type(error).__name__}: {text}".replace(str(place.folder), "")


def served(place: Place, why_private: str = "") -> str:
    """
    Ask for the kernel, which must be right, and published, or private for a reason that says so.
    """
    kernel = place.get()
    entry = kernel.entry
    if why_private:
        assert why_private in entry.why_private, entry.why_private or "it was published"
        assert not place.published(), "it was published"
        return f"served, not published: {entry.why_private}".replace(str(place.folder), "")
    assert not entry.why_private, entry.why_private
    assert place.is_right(kernel), f"{len(entry.library)} bytes instead of {len(place.good)}"
    return f"served right ({kernel.tier})"


def no_harm(place: Place) -> None:
    """
    Check that, without the trouble, a process gets the right kernel, and nothing wrong is on the
    disk.
    """
    store = Store.open(place.root)
    assert not store.index.failures(), f"remembered: {store.index.failures()}"
    store.index.close()
    assert all(data == place.good for data in place.published()), "something else was published"
    assert place.is_right(place.get())
    kernel = place.get()
    assert kernel.tier == "disk" and place.is_right(kernel), kernel.tier
    bad = [result for result in Store.open(place.root).verify() if not result.is_good]
    assert not bad, bad
    drafts = [*place.root.glob("v1/tmp/*"), *place.root.glob("v1/quarantine/*")]
    assert not drafts, drafts


@contextmanager
def patched(target: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute for the length of a with block."""
    real = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, real)


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set variables for the length of a with block; None unsets one."""
    before = dict(os.environ)
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # which remembers TMPDIR
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None


def real_linker() -> str:
    """Return the linker that works."""
    found = driver()
    assert found is not None
    return found
