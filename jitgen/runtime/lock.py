# SPDX-License-Identifier: Apache-2.0
"""
A lock: a file with the kernels of plans that one machine chose and compiled.

It has the plans, the kernel of every bucket of rows on every device, the key of each kernel and the
digests of its files, and what these depend on: the toolchain, settings, and digests of the tables
that choose kernels. Another machine checks that it agrees with the lock before its first call:
`jitgen.runtime.locked`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from jitgen.errors import LockError
from jitgen.support import vocabulary as v
from jitgen.support.codec import Rule, from_json, to_json
from jitgen.support.documents import BadDocument, canonical_json, parse_json, read_bounded
from jitgen.support.frozen import frozen

SCHEMA = 1
MAX_BYTES = 2**24
"""Largest lock that is read; that of deepseek-v3 for all Hopper devices has 90 KB."""

Sha256 = Annotated[str, Rule(pattern="^[0-9a-f]{64}$", description="SHA-256, in hexadecimal")]
MaybeSha256 = Annotated[str, Rule(pattern="^([0-9a-f]{64})?$")]
Rows = Annotated[int, Rule(minimum=1)]


@frozen
class LockedSweep:
    """Problems of a plan that differ only in their rows: see `jitgen.plans.sweep.Sweep`."""

    problem: v.ProblemValues
    min_rows: Rows
    max_rows: Rows
    is_optional: bool
    is_early: bool
    calls: v.Count


@frozen
class LockedPlan:
    """A plan: its name, the digest of its problems, and its contents."""

    name: str
    digest: Sha256
    description: str
    sweeps: tuple[LockedSweep, ...]


@frozen
class Step:
    """
    Consecutive buckets with the same kernels.

    Attributes:
        rows: Upper bound of the mean rows of a group.
        kernels: Names of the kernels that their calls launch.
    """

    rows: Rows
    kernels: tuple[v.Name, ...]


@frozen
class Choices:
    """The choices of one device for one sweep of a plan; `sweep` is its number, from 0."""

    plan: str
    sweep: v.Count
    device: str
    steps: tuple[Step, ...]


@frozen
class Tables:
    """
    Digests of the tables that choose kernels on a device; empty for a missing table.

    Attributes:
        device: Name of the device.
        shipped: Digest of the table that comes with jitgen.
        measured: Digest of the measurements of the machine that made the lock.
    """

    device: str
    shipped: MaybeSha256
    measured: MaybeSha256


@frozen
class LockedKernel:
    """A kernel: its name, key and config, and the SHA-256 of each of its files."""

    name: v.Name
    key: Sha256
    config: v.ConfigValues
    files: Annotated[Mapping[str, Sha256], v.by("file")]


@frozen
class LockedTarget:
    """
    The part of a lock for one target.

    Attributes:
        arch: The target.
        devices: Names of the devices that chose.
        host: Operating system and processor family of the host part.
        options: Options of the compiler.
        conditions: jitgen's version, the generation of the kernels, and settings that choices
            depend on.
        tables: Digests of the tables of each device.
        choices: The kernels of every bucket.
        kernels: Each kernel of the choices once, by name.
    """

    arch: v.ArchName
    devices: tuple[str, ...]
    host: str
    options: tuple[str, ...]
    conditions: Mapping[str, str]
    tables: tuple[Tables, ...]
    choices: tuple[Choices, ...]
    kernels: tuple[LockedKernel, ...]


@frozen
class Lock:
    """
    The content of a lock.

    Attributes:
        schema: Version of this form.
        jitgen: Version of jitgen that made it.
        toolchain: Versions of the compiler's packages.
        plans: The plans.
        targets: The kernels of the plans, for each target.
    """

    schema: int
    jitgen: str
    toolchain: Mapping[str, str]
    plans: tuple[LockedPlan, ...]
    targets: tuple[LockedTarget, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the lock's content; ranks with the same digest have the same lock."""
        return hashlib.sha256(canonical_json(to_json(self)).encode("ascii")).hexdigest()

    def encode(self) -> bytes:
        """Return the bytes of the lock's file."""
        return f"{json.dumps(to_json(self), indent=1, sort_keys=True)}\n".encode("ascii")


def read(path: Path) -> Lock:
    """
    Return the lock in the file `path`.

    Raises:
        LockError: It cannot be read, has another schema, or is not a lock.
    """
    try:
        document = parse_json(read_bounded(path, MAX_BYTES), max_bytes=MAX_BYTES)
        found = document.get("schema") if isinstance(document, dict) else None
        if type(found) is int and found != SCHEMA:
            raise BadDocument(f"it has the schema {found}, and this jitgen reads {SCHEMA}")
        return from_json(Lock, document)
    except OSError as error:
        raise LockError(
            f"the lock {path} cannot be read: {error.strerror or error}; jitgen lock makes one"
        ) from error
    except BadDocument as error:
        raise LockError(f"{path} is no lock: {error}; make one with: jitgen lock PLAN") from None
