# SPDX-License-Identifier: Apache-2.0
"""
Swaps between the check and the load, and after it, to see whose bytes run.

Each kind says what it did before the store held bytes, when digests were taken through a descriptor
and the system's loader then got a path.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from jitgen.cache import Entry, Store
from jitgen.cache import entry as files_module
from jitgen.runtime import kernel, native
from jitgen.runtime.loader import KernelLoader
from tests.chaos.kernels import (
    ARCH,
    CONFIGS,
    FOREIGN,
    Mark,
    answer_of,
    fill,
    in_child,
    loader,
    name_of,
    prebuilt,
    pretending,
    result_of,
    warm_up,
)
from tests.chaos.report import Stage

CONFIG, OTHER = CONFIGS[:2]
Swap = Callable[[Path, Entry], None]


def overwrite(path: Path, data: bytes) -> None:
    """Write into the very file, as damage does."""
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()


def replace(path: Path, data: bytes) -> None:
    """Put another file in its place."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.replace(path)


def foreign() -> bytes:
    return prebuilt().foreign[name_of(CONFIG)]


def _swap_folder(_: Path, entry: Entry) -> None:
    path = entry.directory
    shutil.copytree(path, path.with_name("copy"))
    path.rename(path.with_name("old"))
    path.with_name("copy").rename(path)
    replace(path / "kernel.so", foreign())


def _swap_shard(root: Path, entry: Entry) -> None:
    shard = entry.directory.parent
    elsewhere = root.parent / "elsewhere"
    shutil.copytree(shard, elsewhere)
    replace(elsewhere / entry.key / "kernel.so", foreign())
    shard.rename(root.parent / "old")
    shard.symlink_to(elsewhere)


def _swap_root(root: Path, entry: Entry) -> None:
    shutil.copytree(root, root.with_name("copy"))
    root.rename(root.with_name("old"))
    root.with_name("copy").rename(root)
    replace(entry.directory / "kernel.so", foreign())


def _swap_link(root: Path, entry: Entry) -> None:
    target = root.parent / "foreign.so"
    target.write_bytes(foreign())
    (entry.directory / "kernel.so").unlink()
    (entry.directory / "kernel.so").symlink_to(target)


BETWEEN: dict[str, tuple[Swap, str]] = {
    "rename over the library": (
        lambda _, e: replace(e.directory / "kernel.so", foreign()),
        "ran foreign code",
    ),
    "write into the library": (
        lambda _, e: overwrite(e.directory / "kernel.so", foreign()),
        "ran foreign code",
    ),
    "cut the library off": (
        lambda _, e: overwrite(e.directory / "kernel.so", b""),
        "entry quarantined, compiled again",
    ),
    "remove the library": (
        lambda _, e: (e.directory / "kernel.so").unlink(),
        "entry quarantined, compiled again",
    ),
    "link to another library": (_swap_link, "ran foreign code"),
    "another folder in the entry's place": (_swap_folder, "ran foreign code"),
    "link to another shard": (_swap_shard, "ran foreign code"),
    "another root in the root's place": (_swap_root, "ran foreign code"),
    "write into the record": (
        lambda _, e: overwrite(e.directory / "meta.json", b"{}"),
        "ran, unnoticed until the next read",
    ),
}
"""
Swaps right after the digests were checked, with the outcome of each before jitgen was made safe
against it.
"""

AFTER: dict[str, tuple[Swap, str]] = {
    "write into the mapped library": (
        lambda _, e: overwrite(e.directory / "kernel.so", os.urandom(20_000)),
        "SIGILL in the middle of a call",
    ),
    "cut the mapped library off": (
        lambda _, e: overwrite(e.directory / "kernel.so", b""),
        "SIGBUS in the middle of a call",
    ),
    "remove the root under a mapped library": (
        lambda root, _: shutil.rmtree(root),
        "ran on local disks, SIGBUS on network file systems",
    ),
}
"""
Changes to the files of a kernel that is loaded, with the outcome of each before jitgen was made
safe against it.
"""


def run(_: object = None) -> Stage:
    stage = Stage("swaps", "no swap runs foreign bytes, and none kills the process")
    warm_up()
    for what, (swap, before) in BETWEEN.items():
        _case(stage, what, before, lambda root, swap=swap: _between(root, swap))
    for what, (swap, before) in AFTER.items():
        _case(stage, what, before, lambda root, swap=swap: _after(root, swap))
    for what, (work, before) in OTHERS.items():
        _case(stage, what, before, work)
    return stage.end()


def _case(stage: Stage, what: str, before: str, work: Callable[[Path], str]) -> None:
    """Do `work` in a child, since a signal may kill it, and add the outcome to `stage`."""
    with tempfile.TemporaryDirectory() as folder:
        mark, said = Mark(Path(folder)), Path(folder, "said")
        trouble = in_child(lambda: said.write_text(work(Path(folder, "cache"))))
        text = trouble or said.read_text()
        if mark.is_there:
            text = f"foreign code ran; {text}"
        is_good = not trouble and not mark.is_there and not text.startswith("BAD")
        stage.case(what, f"{text} (before: {before})", is_good=is_good)


def _between(root: Path, swap: Swap) -> str:
    fill(root, 1)
    real = files_module.read_entry

    def read_entry(*arguments: object, **options: object) -> Entry:
        entry = real(*arguments, **options)
        swap(root, entry)
        return entry

    from jitgen.cache import serving

    serving.read_entry = read_entry
    with pretending() as compiled:
        kernel = loader(root).get(CONFIG, ARCH)
        got = result_of(kernel)
        serving.read_entry = real
        again = result_of(loader(root).get(CONFIG, ARCH))
    expected = answer_of(CONFIG)
    if (got, again) != (expected, expected):
        return f"BAD got {got}, then {again} instead of {expected}"
    healed = "compiled anew by the next process" if compiled else "still there for the next process"
    return f"the checked bytes ran; {healed}"


def _after(root: Path, swap: Swap) -> str:
    fill(root, 1)
    kernel = loader(root).get(CONFIG, ARCH)
    first = result_of(kernel)
    swap(root, kernel.entry)
    results = {result_of(kernel) for _ in range(1000)}
    if {first} | results != {answer_of(CONFIG)}:
        return f"BAD got {results}"
    with pretending():
        if result_of(loader(root).get(CONFIG, ARCH)) != answer_of(CONFIG):
            return "BAD the next process got something else"
    return "1,000 calls right, and the next process is served"


def _republish(root: Path) -> str:
    """Remove and publish in one process: the same path, another file."""
    store = fill(root, 2)
    first = KernelLoader(store).get(CONFIG, ARCH)
    entry = store.read(first.key)
    assert entry is not None
    store.remove(first.key)
    other = prebuilt().good[name_of(OTHER)]
    meta = entry.meta
    swapped = {**entry.files, "kernel.so": other}
    store.publish(type(meta)(**{**_fields(meta), "symbol": name_of(OTHER)}), swapped)
    second = KernelLoader(Store.open(root)).get(CONFIG, ARCH)
    got = result_of(first), result_of(second)
    wanted = answer_of(CONFIG), answer_of(OTHER)
    return f"each call ran its own library: {got}" if got == wanted else f"BAD got {got}"


def _fields(meta: object) -> dict[str, object]:
    return {name: getattr(meta, name) for name in type(meta).__dataclass_fields__}


def _stale_quarantine(root: Path) -> str:
    """
    Let a process that failed to load an entry quarantine its key, under which there is a newer,
    good entry: that must stay.
    """
    store = fill(root, 1)
    entry = loader(root).get(CONFIG, ARCH).entry
    store.remove(entry.key)
    meta = type(entry.meta)(**{**_fields(entry.meta), "created": "2026-01-01T00:00:00+00:00"})
    store.publish(meta, entry.files)
    store.quarantine(entry, "it could not be loaded")
    return "the newer entry stayed" if store.read(entry.key) else "BAD the newer entry is gone"


def _edited_source(root: Path) -> str:
    """The source of a kernel is what PTX is made from: code that runs."""
    fill(root, 1)
    kernel = loader(root).get(CONFIG, ARCH)
    replace(kernel.entry.directory / "kernel.py", b"raise SystemExit('foreign code ran')\n")
    is_ours = "foreign" not in kernel.source
    return "the checked source is shown and compiled" if is_ours else "BAD the foreign source"


def _no_memory_files(root: Path) -> str:
    """Without memfd: a private copy, whose name no other process knows."""
    fill(root, 1)
    entry = Store.open(root).read(KernelLoader(Store.open(root)).get(CONFIG, ARCH).key)
    assert entry is not None
    os.memfd_create = _refuse  # type: ignore[assignment]
    replace(entry.directory / "kernel.so", foreign())
    got = int(kernel.load(entry)())
    return "the checked bytes ran" if got == answer_of(CONFIG) else f"BAD got {got}"


def _refuse(*_: object) -> int:
    raise OSError(38, "Function not implemented")


def _reused_descriptors(_: Path) -> str:
    """Two libraries under one descriptor's number, one after the other."""
    kernel.load_runtime_library()
    libraries = prebuilt().good
    got = [
        int(native.load(libraries[name_of(config)], "kernel")[name_of(config)]())
        for config in CONFIGS
    ]
    wanted = [answer_of(config) for config in CONFIGS]
    return f"{len(got)} libraries, each itself" if got == wanted else f"BAD got {got}"


OTHERS: dict[str, tuple[Callable[[Path], str], str]] = {
    "remove and publish under one path": (
        _republish,
        "the old file served, the new one was quarantined",
    ),
    "a stale report of damage": (_stale_quarantine, "the good newer entry was quarantined"),
    "edit the source of a loaded kernel": (_edited_source, "Kernel.ptx ran it"),
    "no files in memory": (_no_memory_files, "ran foreign code"),
    "descriptors that are used again": (_reused_descriptors, "does not apply"),
}
assert len(BETWEEN) + len(AFTER) + len(OTHERS) >= 16
assert FOREIGN not in map(answer_of, CONFIGS)
