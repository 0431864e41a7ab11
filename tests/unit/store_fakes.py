# SPDX-License-Identifier: Apache-2.0
"""Artifacts that no compiler made, for the tests of the store."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitgen.cache import Entry, Meta, Store
from jitgen.cache.entry import disk_bytes, key_of
from jitgen.cache.folder import Folder

STRANGER = 12345
"""The number of another user."""


def document(number: int, **changes: Any) -> dict[str, Any]:
    """Return the key document of fake kernel `number`."""
    return {
        "schema": 1,
        "config": {
            "op": "grouped_gemm",
            "layout": "ragged",
            "tile": {"m": number, "n": 128, "k": 128},
        },
        "arch": "cpu",
        "templates": "ab" * 32,
        "toolchain": {"nvidia-cutlass-dsl": "4.8.1", "apache-tvm-ffi": "0.1.15"},
        "options": ["--enable-tvm-ffi"],
    } | changes


def fake_meta(number: int, **changes: Any) -> Meta:
    """Return the record of fake kernel `number`; its files are filled in by publishing."""
    key_document = changes.pop("key_document", document(number))
    values = {
        "key": key_of(key_document),
        "key_document": key_document,
        "name": f"grouped_gemm_fake_t{number}x128x128_{key_document['arch']}",
        "arch": key_document["arch"],
        "config": key_document["config"],
        "symbol": "fake",
        "library": "kernel.so",
        "files": {},
        "created": "2026-01-02T03:04:05+00:00",
        "compile_s": 1.5,
        "link_s": 0.25,
        "host_isa": ("x86-64-v3",),
        "jitgen": "0.1.0",
    }
    return Meta(**(values | changes))


def fake_files(number: int, num_bytes: int = 3000) -> dict[str, bytes]:
    """Return the files of fake kernel `number`."""
    return {
        "kernel.py": f"# fake kernel\nTILE_M = {number}\n".encode("ascii"),
        "kernel.so": b"\x7fELF" + bytes([number % 256]) * num_bytes,
    }


def publish(store: Store, number: int, num_bytes: int = 3000, **changes: Any) -> Entry:
    """Publish fake kernel `number`."""
    return store.publish(fake_meta(number, **changes), fake_files(number, num_bytes))


def folder_of(entry: Entry) -> Path:
    """Return where `entry` lies in its store."""
    assert entry.directory is not None
    return entry.directory


def age(entry: Entry, seconds: float) -> None:
    """Make `entry` look as if it was last used `seconds` ago."""
    then = time.time() - seconds
    os.utime(folder_of(entry), (then, then))


def opened(entry: Entry) -> Folder:
    """Return the folder of `entry`, open."""
    path = folder_of(entry)
    return Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY), path, is_shared=False)


def du(entry: Entry) -> int:
    """Return the bytes that `entry` takes on the disk."""
    with opened(entry) as folder:
        return disk_bytes(folder)


def tree(folder: Path) -> list[str]:
    """Return the names of everything below `folder`."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def as_stranger(work: Callable[[], object]) -> object:
    """Return what `work` returns as another user, in a child."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        text = "null"
        try:
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            text = json.dumps(work())
        except BaseException as error:  # what is raised is told, and no test runs twice
            text = json.dumps(repr(error))
        finally:
            os.write(sink, text.encode())
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return json.loads(said)


def used(store: Store) -> Store:
    """Return a store with one entry, two uses of it and one failure."""
    key = publish(store, 1).key
    store.index.record_use(key)
    store.index.record_use(key)
    store.index.remember_failure("ab" * 32, "other", "did not fit", 60)
    assert store.index.uses(key)[0] == 2
    return store
