# SPDX-License-Identifier: Apache-2.0
"""
The lock and the remote of a soak: a store compared with a lock, and hosts that freeze with it.

The soak looks by itself whether the store is as the lock says, so that it knows whether the service
must start. A host is a new process with an empty cache: it fetches the locked kernels from the
service, from a folder that is a remote, or from either, and compiles none. Everything that it kept
must be signed by a trusted key, and not revoked before the host began.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from jitgen.cache import Damaged, Entry, Store
from jitgen.config import Arch, Config
from jitgen.errors import CacheError
from jitgen.plans import configs, load
from jitgen.plans.lock import MissingKernels, locked
from jitgen.remote import layout
from jitgen.remote.objects import Objects
from jitgen.remote.outcomes import RemoteError
from jitgen.runtime.lock import Lock
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from tests.service.trusting import sealed, trust_in

PLAN = """
[[problems]]
layout = "ragged"
groups = 8
rows_per_group = { min = 1, max = 512 }
matrix = [{ n = 256, k = 512 }]
"""

HOST = """
import sys
import jitgen
from jitgen.errors import LockError

try:
    jitgen.freeze(lock=sys.argv[1])
except LockError as error:
    print(error)
    sys.exit(3)
"""


def digest_of(entry: Entry) -> str:
    """Return the digest by which a service revokes an entry."""
    return hashlib.sha256(entry.meta.encode()).hexdigest()


class LockFile:
    """
    The lock of one small plan, and the store that a service compares with it.

    Attributes:
        path: The file of the lock.
        configs: The kernels of the plan.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        plan = folder / "locked.toml"
        plan.write_text(PLAN)
        self.path = folder / "jitgen.lock"
        self.root = root
        self._plan = load(plan)
        self.configs: list[Config] = list(configs(self._plan, Arch.CPU))
        self._lock: Lock | None = None

    def write(self) -> bool:
        """Lock the kernels that are in the store now; returns whether all are there."""
        try:
            self._lock = locked([self._plan], [Arch.CPU], Store(self.root, "ro"))
        except MissingKernels:
            return False
        self.path.write_bytes(self._lock.encode())
        return True

    def falsify(self) -> None:
        """Put the lock of another machine there: its first kernel has other bytes."""
        assert self._lock is not None
        (target,) = self._lock.targets
        first, *others = target.kernels
        files = {name: hashlib.sha256(name.encode()).hexdigest() for name in first.files}
        kernels = (replace(first, files=files), *others)
        self._lock = replace(self._lock, targets=(replace(target, kernels=kernels),))
        self.path.write_bytes(self._lock.encode())

    def differences(self, revoked: dict[str, float]) -> list[str]:
        """Return why a service must not start with this lock; empty if it must."""
        assert self._lock is not None
        store, told = Store(self.root, "ro"), []
        for kernel in self._lock.targets[0].kernels:
            entry = None
            with suppress(CacheError):
                entry = store.read(kernel.key)
            if entry is None:
                told.append(f"{kernel.name} is missing")
            elif {n: f["sha256"] for n, f in entry.meta.files.items()} != dict(kernel.files):
                told.append(f"{kernel.name} has other bytes")
            elif digest_of(entry) in revoked or not entry.signatures:
                told.append(f"{kernel.name} is revoked or not signed")
        return told


class Fleet:
    """
    Hosts of a service and of a remote folder.

    Attributes:
        counts: What happened, and how often.
        wrong: What must not happen.

    Args:
        folder: A folder for the hosts' files.
        lock: The lock with which they freeze.
        seed: Of what is random.
    """

    def __init__(self, folder: Path, lock: LockFile, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._folder = folder
        self._lock = lock
        self._random = random.Random(seed)
        self._remote = folder / "remote"
        self._remote.mkdir(parents=True)
        self._version = 0

    def trust(self, keys: list[PrivateKey], revoked: dict[str, float]) -> None:
        """Publish the next trust document; hosts of the remote find it there by themselves."""
        self._version += 1
        document = sealed(*keys, version=self._version, revoked=dict.fromkeys(revoked, "soak"))
        (self._folder / "trust.json").write_bytes(document)
        if self._version == 1:
            (self._folder / "first.json").write_bytes(document)
        there = self._remote / layout.TRUST_PATH
        there.parent.mkdir(exist_ok=True)
        there.write_bytes(document)

    def push(self) -> None:
        """Put the entries of the service's store into the remote, over what is there."""
        backend = Objects(self._remote.as_uri(), is_patient=True)
        for entry in _entries(self._lock.root):
            with suppress(RemoteError, Damaged):
                layout.push(backend, entry, replaces=True)

    def harm(self) -> None:
        """Harm objects of the remote: cut, changed, without signatures, or gone."""
        files = [path for path in self._remote.glob("v1/*/*/*") if path.is_file()]
        for path in self._random.sample(files, min(6, len(files))):
            data = bytearray(path.read_bytes())
            match self._random.randrange(4):
                case 0:
                    path.write_bytes(data[: len(data) // 2])
                case 1:
                    data[self._random.randrange(len(data))] ^= 0x10
                    path.write_bytes(data)
                case 2 if path.suffix == ".json":
                    with suppress(ValueError):  # one that was harmed before
                        path.write_text(json.dumps({**json.loads(data), "signatures": ""}))
                case _:
                    path.unlink()

    def host(self, url: str, token: str, keys: list[PrivateKey], revoked: dict[str, float]) -> None:
        """Let a new host freeze with the lock, and look at all that it keeps."""
        begin, number = time.time(), sum(self.counts.values())
        known = {digest for digest, when in dict(revoked).items() if when < begin}
        root = self._folder / f"host{number}"
        (self._folder / "token").write_text(token)
        (self._folder / "token").chmod(0o600)
        source = self._random.choice(("remote", "service", "both"))
        # A host of the remote alone begins with the first document, and must find the latest.
        trust = "first.json" if source == "remote" else "trust.json"
        chosen = {
            "JITGEN_CACHE_DIR": str(root),
            "JITGEN_TRUST": str(self._folder / trust),
            "JITGEN_ARCH": "cpu",
            "JITGEN_ON_MISS": "error",
            **({"JITGEN_REMOTE": self._remote.as_uri()} if source != "service" else {}),
            **({"JITGEN_SERVICE": url} if source != "remote" else {}),
            **({"JITGEN_TOKEN_FILE": str(self._folder / "token")} if source != "remote" else {}),
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", HOST, str(self._lock.path)],
            env={n: v for n, v in os.environ.items() if not n.startswith("JITGEN_")} | chosen,
            capture_output=True,
            text=True,
            check=False,
        )
        outcome = {0: "as locked", 3: "refused"}.get(done.returncode, "error")
        self.counts[f"host of {source}: {outcome}"] += 1
        if outcome == "error":
            self.wrong.append(f"a host ended with {done.returncode}: {done.stderr[-500:]}")
        kept = list(_entries(root))
        if outcome == "as locked" and len(kept) < len(self._lock.configs):
            self.wrong.append(f"a host is frozen with {len(kept)} kernels")
        for entry in kept:
            self.counts["kernels that hosts took"] += 1
            verdict = judge(entry.meta.encode(), entry.signatures, trust_in(*keys))
            if not verdict:
                self.wrong.append(f"{entry.key[:12]} at a host of {source}: {verdict.reason}")
            if digest_of(entry) in known & revoked.keys():
                self.wrong.append(f"{entry.key[:12]} at a host of {source}: it was revoked")
        subprocess.run(["rm", "-rf", str(root)], check=False)


def _entries(root: Path) -> Iterator[Entry]:
    """Yield the entries of a store that can be read."""
    store = Store(root, "ro")
    with suppress(CacheError, OSError):
        for key in list(store.keys()):
            with suppress(CacheError):
                if entry := store.read(key):
                    yield entry
