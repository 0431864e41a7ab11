# SPDX-License-Identifier: Apache-2.0
"""
Random damage to every file and folder of a cache, and what processes get from it afterwards.

After each fault a process that has nothing in memory asks for every kernel that the fault may have
hit, and now and then a process looks over the whole store. Nothing may be wrong, nothing that was
not checked may run, no caller may see a raw error, and what was hit must be served or healed.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from jitgen.errors import JitgenError, UnsafeCacheRoot
from tests.chaos.kernels import (
    ARCH,
    CONFIGS,
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

USER = 20_003
_BATCH = 100  # faults of one process: each load stays mapped
Fault = Callable[[random.Random, Path, Path], None]


def _flip(chance: random.Random, path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes())
    bit = chance.randrange(max(1, len(data) * 8))
    if data:
        data[bit // 8] ^= 1 << bit % 8
    _put(path, bytes(data))


def _cut(chance: random.Random, path: Path, _: Path) -> None:
    data = path.read_bytes()
    _put(path, data[: chance.randrange(len(data) + 1)])


def _extend(chance: random.Random, path: Path, _: Path) -> None:
    _put(path, path.read_bytes() + chance.randbytes(chance.randrange(1, 5000)))


def _zeros(chance: random.Random, path: Path, _: Path) -> None:
    """
    Fill the file with zeros, as after a power loss on a file system that writes sizes before data.
    """
    _put(path, bytes(path.stat().st_size))


def _garbage(chance: random.Random, path: Path, _: Path) -> None:
    _put(path, chance.randbytes(chance.randrange(5000)))


def _foreign(chance: random.Random, path: Path, _: Path) -> None:
    """Put in place a library that is whole and works, and was never published."""
    _put(path, prebuilt().foreign[name_of(chance.choice(CONFIGS))])


def _swap(chance: random.Random, path: Path, root: Path) -> None:
    """Give the file the content of another file of that name."""
    others = [other for other in _all_below(root) if other.name == path.name]
    files = [other for other in others if stat.S_ISREG(other.lstat().st_mode)]
    _put(path, chance.choice(files or [path]).read_bytes())


def _sparse(chance: random.Random, path: Path, _: Path) -> None:
    """Make the file a gigabyte long, without the disk space for it."""
    _put(path, path.read_bytes()[:10])
    os.truncate(path, 2**30)


def _gone(_: random.Random, path: Path, __: Path) -> None:
    _discard(path)


def _link(chance: random.Random, path: Path, root: Path) -> None:
    target = root.parent / f"linked-{chance.randrange(10**9)}"
    shutil.move(path, target)
    path.symlink_to(target)


def _dangling(chance: random.Random, path: Path, root: Path) -> None:
    _discard(path)
    path.symlink_to(root.parent / f"nowhere-{chance.randrange(10**9)}")


def _fifo(_: random.Random, path: Path, __: Path) -> None:
    _discard(path)
    os.mkfifo(path)


def _folder(_: random.Random, path: Path, __: Path) -> None:
    _discard(path)
    path.mkdir()


def _file(_: random.Random, path: Path, __: Path) -> None:
    _discard(path)
    path.write_bytes(b"x")


def _mode(chance: random.Random, path: Path, _: Path) -> None:
    path.chmod(chance.choice([0, 0o200, 0o777, 0o666, 0o1777, 0o4755]))


def _time(chance: random.Random, path: Path, _: Path) -> None:
    when = chance.choice([-(2**31), 0, 2**31, 2**33, 2**40])
    os.utime(path, (when, when))


ON_FILES: tuple[Fault, ...] = (
    *(_flip, _flip, _flip, _flip, _cut, _cut, _extend, _zeros, _garbage, _foreign, _foreign),
    *(_swap, _swap, _sparse, _gone, _gone, _link, _dangling, _fifo, _folder, _mode, _time),
)
ON_FOLDERS: tuple[Fault, ...] = (_gone, _link, _dangling, _fifo, _file, _mode, _mode, _time)


def run(quick: bool = True) -> Stage:
    stage = Stage(
        "damage", "0 wrong, 0 loads of what was not verified, 0 raw errors, all served or healed"
    )
    warm_up()
    users = [None, USER] if os.geteuid() == 0 else [None]
    faults = (60 if quick else 10_000) // len(users)
    for number, user in enumerate(users):
        for batch in range(-(-faults // _BATCH)):
            size = min(_BATCH, faults - batch * _BATCH)
            _batch(stage, random.Random(f"{number} {batch}"), size, user)
    return stage.end()


def _batch(stage: Stage, chance: random.Random, size: int, user: int | None) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))  # open to every user
    try:
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir(mode=0o700)
        if user is not None:
            os.chown(home, user, user)
        mark, said = Mark(home), home / "said"
        trouble = in_child(lambda: said.write_text(_attack(chance, size, home)), user=user)
        if trouble:
            stage.fail(f"batch of {user}: {trouble}")
            return
        head, *failures = said.read_text().splitlines()
        stage.counts.update(Counter(eval(head)))  # noqa: S307  # our own child's repr of a dict
        for text in failures:
            stage.fail(text)
        if mark.is_there:
            stage.fail(f"foreign code ran in a batch of {user}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _attack(chance: random.Random, size: int, home: Path) -> str:
    """Do `size` faults, each with all checks; return counts and failures, a line each."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    root = home / "cache"
    fill(root, 6)
    with pretending() as compiled:
        for _ in range(size):
            if not root.exists():
                fill(root, 6)
            what = _fault(chance, root)
            counts["faults"] += 1
            compiled.clear()
            try:
                failures += [f"{what}: {text}" for text in _check(chance, root, counts)]
            except UnsafeCacheRoot:
                counts["roots refused"] += 1
                _repair(root)
            except JitgenError as error:
                if "Permission denied" in str(error) and _is_closed(root):
                    counts["roots closed to their owner"] += 1
                    _repair(root)
                    continue
                failures.append(f"{what}: {type(error).__name__}: {error}")
            except BaseException as error:  # raw: exactly what must not come out
                failures.append(f"{what}: raw {type(error).__name__}: {error}")
            counts["compiled anew"] += len(compiled)
            if failures and len(failures) > 20:
                break
    return "\n".join([repr(dict(counts)), *(" ".join(text.split()) for text in failures)])


def _fault(chance: random.Random, root: Path) -> str:
    """Damage one thing below `root`; return what was done to what."""
    path = chance.choice([root, *_all_below(root)])
    what = str(path.relative_to(root.parent))
    try:
        found = path.lstat()
        kind = chance.choice(ON_FOLDERS if stat.S_ISDIR(found.st_mode) else ON_FILES)
        if stat.S_ISFIFO(found.st_mode) and kind not in (_mode, _time, _link):
            kind = _gone  # reading it would wait for ever
        what = f"{kind.__name__[1:]} {what}"
        kind(chance, path, root)
    except OSError as error:
        return f"{what} (not done: {error.strerror})"
    return what


def _all_below(root: Path) -> list[Path]:
    """Return everything below `root` that can be reached, in one order."""
    found = []
    for folder, folders, files in os.walk(root):  # links are not followed, closed folders left out
        found += [Path(folder, name) for name in (*folders, *files)]
    return sorted(path for path in found if not os.path.islink(path))  # closed ones


def _check(chance: random.Random, root: Path, counts: Counter[str]) -> list[str]:
    """Use the store as programs do; return what is wrong."""
    wrong = []
    for config in CONFIGS[:6]:
        got = result_of(loader(root).get(config, ARCH))
        if got != answer_of(config):
            wrong.append(f"{name_of(config)} returned {got}")
    subject = loader(root)
    for config in chance.sample(CONFIGS[:6], 2):
        kernel = subject.get(config, ARCH)
        if kernel.tier == "disk":
            counts["served from disk"] += 1
            continue
        if "Permission denied" in kernel.entry.why_private and _is_closed(root):
            counts["roots closed to their owner"] += 1
            _repair(root)
            break
        if "is no folder" in kernel.entry.why_private and not root.is_dir():
            counts["roots that were no folder"] += 1
            _repair(root)
            break
        wrong.append(f"{name_of(config)} was not healed: {kernel.entry.why_private}")
    if chance.random() < 0.2:
        _look_over(chance, subject)
        counts["looked over"] += 1
    subject.store.index.close()
    return wrong


def _look_over(chance: random.Random, subject: object) -> None:
    from jitgen.runtime.loader import KernelLoader

    assert isinstance(subject, KernelLoader)
    store, key = subject.store, chance.choice(subject.loaded()).key
    match chance.randrange(6):
        case 0:
            store.verify(rebuild=chance.random() < 0.5)
        case 1:
            list(store.entries())
            store.stats()
        case 2:
            store.prune(chance.choice([0, 1, 10**6]))
        case 3:
            store.index.remember_failure("ab" * 32, "name", "reason", 0.01)
            store.index.failures()
        case 4:
            store.pin(key)
            store.remove(key)
        case _:
            store.nearest({"schema": 2, "arch": "cpu"})


def _repair(root: Path) -> None:
    """Do what the refusal asks for: only the owner may write there. The root may be a link."""
    for path in (root, root / "v1", root / "v1" / "entries"):
        if (path != root and path.is_symlink()) or (os.path.lexists(path) and not path.is_dir()):
            path.unlink()
        elif path.exists():
            path.chmod(0o700)


def _is_closed(root: Path) -> bool:
    """Whether a mode keeps even the owner out: for the owner to mend, as the message says."""
    folders = [root, root / "v1", root / "v1" / "entries"]
    modes = [
        path.stat().st_mode & 0o700 for path in folders if os.path.exists(path)
    ]  # of links, too
    return any(mode != 0o700 for mode in modes)


def _put(path: Path, data: bytes) -> None:
    found = path.stat()
    path.unlink()
    path.write_bytes(data)
    path.chmod(stat.S_IMODE(found.st_mode))


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
