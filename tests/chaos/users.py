# SPDX-License-Identifier: Apache-2.0
"""
Other users of the machine: who owns what, who may write where, and what a victim then loads.

Needs root, to be several users. In each situation a user other than the victim has put foreign code
where the victim looks, or could put it there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from jitgen.errors import UnsafeCacheRoot
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

VICTIM, ATTACKER = 20_001, 20_002
CONFIG = CONFIGS[0]
Situation = Callable[[Path], None]


def _give(path: Path, user: int) -> None:
    """Give `path`, and all below it, to `user`."""
    for each in (path, *path.rglob("*")):
        os.chown(each, user, user, follow_symlinks=False)


def _plant(root: Path) -> None:
    """Put foreign code where the library was, with digests that fit."""
    from dataclasses import replace

    from jitgen.cache import Meta

    for record in root.rglob("meta.json"):
        meta = Meta.decode(record.read_bytes())
        files = {
            "kernel.py": (record.parent / "kernel.py").read_bytes(),
            "kernel.so": prebuilt().foreign[meta.name],
        }
        meta = replace(meta, files={}).with_files(files)
        for name, content in {**files, "meta.json": meta.encode()}.items():
            (record.parent / name).unlink()
            (record.parent / name).write_bytes(content)


def _theirs(root: Path) -> None:
    _plant(root)
    _give(root, ATTACKER)


def _entry(root: Path) -> Path:
    return next(root.rglob("meta.json")).parent


def _parent_of_theirs(root: Path) -> None:
    """
    Give the root's parent to the attacker, while the root belongs to the victim: an old one, say.
    """
    os.chown(root.parent, ATTACKER, ATTACKER)


def _open_parent(root: Path) -> None:
    root.parent.chmod(0o777)


def _sticky_parent_of_theirs(root: Path) -> None:
    os.chown(root.parent, ATTACKER, ATTACKER)
    root.parent.chmod(0o1777)


def _open_root(root: Path) -> None:
    root.chmod(0o777)
    _plant(root)


def _group_root(root: Path) -> None:
    root.chmod(0o2775)
    _plant(root)


def _shard_of_theirs(root: Path) -> None:
    _plant(root)
    _give(_entry(root).parent, ATTACKER)


def _open_shard(root: Path) -> None:
    _plant(root)
    _entry(root).parent.chmod(0o777)


def _entry_of_theirs(root: Path) -> None:
    _plant(root)
    _give(_entry(root), ATTACKER)


def _open_entry(root: Path) -> None:
    _plant(root)
    _entry(root).chmod(0o777)


def _library_of_theirs(root: Path) -> None:
    _plant(root)
    os.chown(_entry(root) / "kernel.so", ATTACKER, ATTACKER)


def _open_library(root: Path) -> None:
    _plant(root)
    (_entry(root) / "kernel.so").chmod(0o666)


def _record_of_theirs(root: Path) -> None:
    _plant(root)
    os.chown(_entry(root) / "meta.json", ATTACKER, ATTACKER)


def _linked_shard(root: Path) -> None:
    """A link to a folder that everybody may write to."""
    shard = _entry(root).parent
    elsewhere = root.parent / "elsewhere"
    shard.rename(elsewhere)
    _plant(elsewhere)
    _give(elsewhere, ATTACKER)
    elsewhere.chmod(0o777)
    shard.symlink_to(elsewhere)


def _linked_root(root: Path) -> None:
    """The path that the victim asks for is a link to a root of theirs."""
    theirs = root.with_name("theirs")
    root.rename(theirs)
    _theirs(theirs)
    root.symlink_to(theirs)


REFUSED: dict[str, Situation] = {
    "a root of theirs": _theirs,
    "a root that everybody may write to": _open_root,
    "a root that a group may write to": _group_root,
    "a link to a root of theirs": _linked_root,
    "a parent of theirs": _parent_of_theirs,
    "a parent of theirs with the sticky bit": _sticky_parent_of_theirs,
    "a parent that everybody may write to": _open_parent,
}
"""Situations in which the root is refused, with an error of one line."""

SET_ASIDE: dict[str, Situation] = {
    "a shard of theirs": _shard_of_theirs,
    "a shard that everybody may write to": _open_shard,
    "a shard that is a link": _linked_shard,
    "an entry of theirs": _entry_of_theirs,
    "an entry that everybody may write to": _open_entry,
    "a library of theirs": _library_of_theirs,
    "a library that everybody may write to": _open_library,
    "a record of theirs": _record_of_theirs,
}
"""
Situations below the root in which nothing of others is loaded: there is a warning of one line, and
the kernel is compiled.
"""


def run(_: object = None) -> Stage:
    stage = Stage("users", "refused with one line, and nothing of others is loaded")
    if os.geteuid():
        stage.lines.append("left out: it takes root to be several users")
        stage.counts["left out"] += len(REFUSED) + len(SET_ASIDE)
        return stage.end()
    warm_up()
    for is_after in (False, True):  # the situation comes about before or after the process starts
        when = "after the start" if is_after else "from the start"
        for what, situation in REFUSED.items():
            _case(stage, f"{what}, {when}", situation, is_after=is_after, refuses=True)
        for what, situation in SET_ASIDE.items():
            _case(stage, f"{what}, {when}", situation, is_after=is_after, refuses=False)
    return stage.end()


def _case(stage: Stage, what: str, situation: Situation, *, is_after: bool, refuses: bool) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))  # open to every user
    try:
        folder.chmod(0o755)
        (folder / "home").mkdir()
        root = folder / "home" / "cache"
        mark = Mark(folder)
        os.chown(folder / "home", VICTIM, VICTIM)
        _filled(root)
        said, go, ready = folder / "said", folder / "go", folder / "ready"
        if not is_after:
            situation(root)
        said.touch()
        os.chown(said, VICTIM, VICTIM)
        (folder / "flags").mkdir()
        os.chown(folder / "flags", VICTIM, VICTIM)
        ready = folder / "flags" / "ready"
        trouble = _attacked(
            lambda: said.write_text(_victim(root, ready, go if is_after else None)),
            situation=lambda: (situation(root), go.touch()) if is_after else None,
            ready=ready if is_after else None,
        )
        text = trouble or said.read_text()
        is_good = not trouble and not mark.is_there
        is_good &= text.startswith("refused: " if refuses else "compiled it: ")
        stage.case(what, f"foreign code ran; {text}" if mark.is_there else text, is_good=is_good)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filled(root: Path) -> None:
    """Have the victim fill its own cache."""
    trouble = in_child(lambda: fill(root, 1), user=VICTIM)
    if trouble:
        raise RuntimeError(trouble)


def _attacked(
    work: Callable[[], object], *, situation: Callable[[], object], ready: Path | None
) -> str:
    """Run `work` as the victim; make the situation once it is `ready`."""
    import threading
    import time

    def attack() -> None:
        deadline = time.monotonic() + 60
        while ready is not None and not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        situation()

    thread = threading.Thread(target=attack)
    if ready is not None:
        thread.start()
    trouble = in_child(work, user=VICTIM)
    if ready is not None:
        thread.join()
    return trouble


def _victim(root: Path, ready: Path, go: Path | None) -> str:
    """Get the kernel as a program would; return what happened, in the words that it was told."""
    import logging
    import time

    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("jitgen").addHandler(handler)
    with pretending() as compiled:
        try:
            subject = loader(root)
            if go is not None:
                subject.store.read("0" * 64)  # it has looked at the root
                ready.touch()
                while not go.exists():
                    time.sleep(0.001)
            got = result_of(subject.get(CONFIG, ARCH))
        except UnsafeCacheRoot as error:
            return f"refused: {error}" if "\n" not in str(error) else "more than one line"
        if got != answer_of(CONFIG):
            return f"wrong: {got}"
        if not compiled:
            return "loaded what others could have written"
        again = result_of(loader(root).get(CONFIG, ARCH))
    told = [line for line in heard if "nothing is loaded from there" in line]
    if again != got or len(told) != 1 or len(compiled) != 1:
        return f"not healed: {again}, {compiled}, {heard}"
    return f"compiled it: {told[0]}"


assert len(REFUSED) + len(SET_ASIDE) >= 12
assert name_of(CONFIG)
