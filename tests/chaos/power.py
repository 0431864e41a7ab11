# SPDX-License-Identifier: Apache-2.0
"""
Power losses: what a disk may hold afterwards, and whether the cache still serves right kernels
then.

What publishing, healing, pruning and the like do to the disk is recorded call by call. A crash
comes after any of them. What was synced before is there. Of all else each may or may not have
reached the disk, independently: names without data, data without names, data cut off or all zeros,
renames that overtook what they rename. That is more than any file system does, and all that POSIX
promises.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.kernels import (
    ARCH,
    CONFIGS,
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

_BATCH = 100  # states of one process: each load stays mapped
Call = dict[str, Any]


def run(quick: bool = True) -> Stage:
    stage = Stage("power", "0 bad, 0 unhealed")
    warm_up()
    states = 100 if quick else 5000
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = Path(folder)
        traces = {name: _recorded(place, name, *work) for name, work in SCENARIOS.items()}
        for name, trace in traces.items():
            stage.lines.append(f"{name}: {len(trace.calls)} calls")
        for batch in range(-(-states // _BATCH)):
            names = list(SCENARIOS)
            _batch(stage, place, [traces[names[(batch + i) % len(names)]] for i in range(_BATCH)])
    return stage.end()


# What is recorded


@dataclass(frozen=True)
class Trace:
    """
    What one scenario did to the disk.

    Attributes:
        name: The scenario.
        template: The tree that it began with.
        calls: What was done to it, in order; paths are relative to the root.
    """

    name: str
    template: Path
    calls: list[Call] = field(repr=False)


def _publish(root: Path) -> None:
    for config in CONFIGS[:3]:
        loader(root).get(config, ARCH)


def _heal(root: Path) -> None:
    for path in root.rglob("kernel.so"):
        path.unlink()
        path.write_bytes(b"damaged")
    _publish(root)


def _remove(root: Path) -> None:
    store = loader(root).store
    for info in list(store.entries())[:2]:
        store.remove(info.key)
    loader(root).get(CONFIGS[0], ARCH)
    store.clear()


def _notes(root: Path) -> None:
    """
    Write to a cache what is no entry: a pin, measurements, digests of builders, and what pruning
    changes.
    """
    subject = loader(root)
    key = subject.get(CONFIGS[0], ARCH).key
    subject.store.pin(key)
    subject.store.tuned.write("a-device", "buckets", "a-problem", {"a": 1})
    subject.store.builders.remember("ab" * 32, "cd" * 32)
    subject.store.prune(1)
    subject.store.unpin(key)


SCENARIOS: dict[str, tuple[int, Callable[[Path], None]]] = {
    "first kernels, no root": (-1, _publish),
    "more kernels": (1, _publish),
    "healing": (3, _heal),
    "removing": (3, _remove),
    "notes": (2, _notes),
}


def _recorded(place: Path, name: str, count: int, work: Callable[[Path], None]) -> Trace:
    """Do `work` on a cache with `count` kernels, and return what reached the operating system."""
    template, root = place / f"template {name}", place / "cache"
    shutil.rmtree(root, ignore_errors=True)
    if count >= 0:
        fill(root, count)
        shutil.copytree(root, template)
    said = place / "said"

    def record() -> None:
        with pretending(), recording(root) as calls:
            work(root)
        said.write_text(json.dumps(calls))

    trouble = in_child(record)
    if trouble:
        raise RuntimeError(trouble)
    calls = json.loads(said.read_text())
    shutil.rmtree(root, ignore_errors=True)
    return Trace(name=name, template=template, calls=calls)


@contextmanager
def recording(root: Path) -> Iterator[list[Call]]:
    """Note what the with block does to files below `root`, and what it syncs."""
    calls: list[Call] = []
    real = {name: getattr(os, name) for name in _RECORDED}

    def path_of(target: object, at: int | None) -> str:
        if isinstance(target, int):
            return str(os.readlink(f"/proc/self/fd/{target}"))
        text = os.fspath(target)  # type: ignore[call-overload]
        return f"{os.readlink(f'/proc/self/fd/{at}')}/{text}" if at is not None else str(text)

    def note(kind: str, *paths: str, **facts: object) -> None:
        if all(path.startswith(f"{root}/") or path == str(root) for path in paths):
            relative = [os.path.relpath(path, root.parent) for path in paths]
            calls.append({"kind": kind, "paths": relative, **facts})

    def wrap(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            _note_call(note, path_of, name, arguments, options)
            return real[name](*arguments, **options)

        return call

    for name in _RECORDED:
        setattr(os, name, wrap(name))
    try:
        yield calls
    finally:
        for name, function in real.items():
            setattr(os, name, function)


_RECORDED = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "link")


def _note_call(
    note: Callable[..., None],
    path_of: Callable[[object, int | None], str],
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    first, at = arguments[0], options.get("dir_fd", options.get("src_dir_fd"))
    match name:
        case "open" if arguments[1] & os.O_CREAT:
            note("create", path_of(first, at))
        case "write":
            data = base64.b64encode(bytes(arguments[1])).decode()
            note("write", path_of(first, None), data=data)
        case "fsync":
            note("sync", path_of(first, None))
        case "rename" | "link":
            note(name, path_of(first, at), path_of(arguments[1], options.get("dst_dir_fd")))
        case "mkdir" | "unlink" | "rmdir":
            note(name, path_of(first, at))


# What the disk may hold


def disk_after(trace: Trace, chance: random.Random) -> dict[str, bytes | None]:
    """Return a tree after a crash: content by path, None for a folder."""
    tree: dict[str, bytes | None] = {}
    if trace.template.exists():
        for path in sorted(trace.template.rglob("*")):
            name = f"cache/{path.relative_to(trace.template)}"
            tree[name] = None if path.is_dir() else path.read_bytes()
        tree["cache"] = None
    crash = chance.randrange(len(trace.calls) + 1)
    done = trace.calls[:crash]
    keeps = chance.choice([0.1, 0.5, 0.9])
    for number, call in enumerate(done):
        if _is_durable(call, done[number + 1 :]) or chance.random() < keeps:
            _apply(tree, call, chance, is_durable=_is_durable(call, done[number + 1 :]))
    return tree


def _is_durable(call: Call, later: list[Call]) -> bool:
    """Return whether a later sync, of file or folder, makes `call` last."""
    target = call["paths"][-1]
    wanted = target if call["kind"] == "write" else os.path.dirname(target)
    for other in later:
        if other["kind"] == "sync" and other["paths"][0] == wanted:
            return True
        if other["kind"] == "rename" and wanted.startswith(other["paths"][0]):
            wanted = other["paths"][1] + wanted.removeprefix(other["paths"][0])
    return False


def _apply(
    tree: dict[str, bytes | None], call: Call, chance: random.Random, *, is_durable: bool
) -> None:
    """
    Apply a recorded call to `tree`, if the folder that it needs reached the disk; writes that are
    not durable are cut off at random.
    """
    path, target = call["paths"][0], call["paths"][-1]
    if os.path.dirname(target) and tree.get(os.path.dirname(target), b"") is not None:
        return  # its folder never reached the disk
    match call["kind"]:
        case "mkdir":
            tree.setdefault(path, None)
        case "create":
            tree.setdefault(path, b"")
        case "write" if isinstance(tree.get(path), bytes):
            data = base64.b64decode(call["data"])
            if not is_durable:
                cut = data[: chance.randrange(len(data) + 1)]
                data = chance.choice([data, cut, bytes(len(data)), b""])
            tree[path] = (tree[path] or b"") + data
        case "unlink" | "rmdir":
            for name in [name for name in tree if name == path or name.startswith(f"{path}/")]:
                del tree[name]
        case "link" if path in tree:
            tree.setdefault(target, tree[path])
        case "rename" if path in tree:
            _rename(tree, path, target)


def _rename(tree: dict[str, bytes | None], path: str, target: str) -> None:
    if any(name.startswith(f"{target}/") for name in tree):
        return  # a folder that is not empty
    tree.pop(target, None)
    for name in [name for name in tree if name == path or name.startswith(f"{path}/")]:
        tree[target + name.removeprefix(path)] = tree.pop(name)


# What the cache makes of it


def _batch(stage: Stage, place: Path, traces: list[Trace]) -> None:
    chance = random.Random(stage.counts["states"])
    said = place / "said"

    def work() -> None:
        counts: Counter[str] = Counter()
        failures: list[str] = []
        with pretending() as compiled:
            for number, trace in enumerate(traces):
                tree = disk_after(trace, chance)
                home = place / f"state {number}"
                _write(home, tree)
                try:
                    text = _check(home / "cache", counts)
                except BaseException as error:  # nothing may come out, raw or not
                    text = f"{type(error).__name__}: {error}"
                if text:
                    failures.append(f"{trace.name}: {text}")
                shutil.rmtree(home)
            counts["compiled anew"] += len(compiled)
        said.write_text(json.dumps([counts, failures]))

    trouble = in_child(work)
    if trouble:
        stage.fail(trouble)
        return
    counts, failures = json.loads(said.read_text())
    stage.counts.update(counts)
    for text in failures:
        stage.fail(text)


def _write(home: Path, tree: dict[str, bytes | None]) -> None:
    home.mkdir(mode=0o700)
    for name, content in sorted(tree.items()):
        path = home / name
        if content is None:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(content)


def _check(root: Path, counts: Counter[str]) -> str:
    counts["states"] += 1
    store = loader(root).store
    for config in CONFIGS[:3]:
        entry = store.read(registry_key(config))
        if entry is not None:
            counts["entries whole"] += 1
            if entry.library != prebuilt().good[name_of(config)]:
                return "bad: a library that was never published"
    for config in CONFIGS[:3]:
        if result_of(loader(root).get(config, ARCH)) != answer_of(config):
            return "bad: wrong result"
    subject = loader(root)
    for config in CONFIGS[:3]:
        kernel = subject.get(config, ARCH)
        if kernel.tier != "disk":
            return f"unhealed: {kernel.entry.why_private}"
    if not all(result.is_good for result in store.verify()):
        return "unhealed: an entry that is not good"
    store.stats()
    store.prune()
    return ""


def registry_key(config: object) -> str:
    """Return the key of `config`."""
    from jitgen.runtime.spec import key

    return key(config, ARCH)  # type: ignore[arg-type]
