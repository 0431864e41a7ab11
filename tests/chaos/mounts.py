# SPDX-License-Identifier: Apache-2.0
"""
Odd file systems: full, read-only, without leave to execute, in layers, in pieces.

Each case mounts what it needs in a mount namespace of its own. The kernel must be served right, and
what is said about it must be true: nothing is called removed that is still there.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from jitgen.settings import settings
from tests.chaos import layered
from tests.chaos.kernels import (
    ARCH,
    CONFIGS,
    answer_of,
    fill,
    hearing,
    in_child,
    loader,
    name_of,
    pretending,
    result_of,
    warm_up,
)
from tests.chaos.mounting import (
    CONFIG,
    Case,
    command,
    entry_path,
    mount_at,
    private_mounts,
    serve,
    tmpfs,
)
from tests.chaos.report import Stage

_NEW_PIDS = 0x20000000


def run(_: object = None) -> Stage:
    stage = Stage("mounts", "served right, truthful messages")
    trouble = in_child(private_mounts)
    if trouble:
        stage.lines.append(f"left out: nothing can be mounted here ({trouble})")
        stage.counts["left out"] += len(CASES)
        return stage.end()
    warm_up()
    for what, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder, "said")

            def work(case: Case = case, folder: str = folder, said: Path = said) -> None:
                private_mounts()
                mount = Path(folder, "mount")
                mount.mkdir()
                text = case(mount)
                said.write_text(text)

            trouble = in_child(work)
            text = trouble or said.read_text()
            stage.case(what, text, is_good=not trouble)
    return stage.end()


def _full(mount: Path) -> str:
    tmpfs(mount, "size=64k")
    (mount / "ballast").write_bytes(bytes(56 * 1024))
    tier, heard = serve(mount / "cache", 2)
    assert tier == "compiled" and len(heard) == 1 and "No space left" in heard[0], heard
    (mount / "ballast").unlink()
    serve(mount / "cache")
    assert serve(mount / "cache")[0] == "disk"
    return f"{heard[0]}; kept as soon as there was room"


def _inodes(mount: Path) -> str:
    tmpfs(mount, "size=1m,nr_inodes=10")
    tier, heard = serve(mount / "cache", 2)
    assert tier == "compiled" and len(heard) == 1 and "No space left" in heard[0], heard
    return heard[0]


def _read_only(mount: Path) -> str:
    tmpfs(mount)
    fill(mount / "cache", 1)
    mount_at("-o", "remount,ro", mount)
    assert serve(mount / "cache")[0] == "disk"
    with pretending(), hearing() as heard:
        other = loader(mount / "cache").get(CONFIGS[1], ARCH)
    assert result_of(other) == answer_of(CONFIGS[1])
    assert len(heard) == 1 and "Read-only file system" in heard[0], heard
    said = command(mount / "cache", "rm", name_of(CONFIG))
    assert said.startswith("1: ") and "cannot be removed" in said, said
    assert entry_path(mount / "cache").exists()
    return f"served from disk; {heard[0]}; rm: {said}"


def _noexec(mount: Path) -> str:
    tmpfs(mount, "size=4m,noexec")
    fill(mount / "cache", 1)
    tier, heard = serve(mount / "cache")
    assert tier == "disk" and not heard, (tier, heard)
    assert entry_path(mount / "cache").exists(), "the good entry was quarantined"
    return "loaded from memory, the entry stayed"


def _noexec_tmp(mount: Path) -> str:
    """Temporary files too: nothing of ours is executed from there."""
    tmpfs(mount, "size=64m,noexec")
    os.environ["TMPDIR"] = str(mount)
    tempfile.tempdir = None
    fill(mount / "cache", 1)
    assert serve(mount / "cache")[0] == "disk"
    return "loaded from memory"


def _bind(mount: Path) -> str:
    real = mount.parent / "real"
    fill(real / "cache", 1)
    mount_at("--bind", real, mount)
    assert serve(mount / "cache")[0] == "disk"
    said = command(mount / "cache", "rm", name_of(CONFIG))
    assert said.startswith("0: ") and not entry_path(real / "cache").exists()
    serve(mount / "cache")
    assert serve(real / "cache")[0] == "disk"
    return "served, removed and published through both paths"


def _split(mount: Path) -> str:
    """The entries lie on a disk of their own: nothing can be renamed there from outside."""
    root = mount / "cache"
    fill(root, 0)
    loader(root).store.pin("ab" * 32)
    entries = root / "v1" / "entries"
    tmpfs(entries)
    assert serve(root)[0] == "compiled"
    assert serve(root)[0] == "disk"
    (entry_path(root) / "kernel.so").unlink()
    assert serve(root)[0] == "compiled"
    assert serve(root)[0] == "disk"
    said = command(root, "clear", "--yes")
    left = list(entries.glob("*/*"))
    assert said.startswith("0: ") and not left, (said, left)
    return f"published, healed; {said}"


def _other_pids(mount: Path) -> str:
    """Two containers share a cache: process numbers mean nothing, locks do."""
    root = mount / "cache"
    fill(root, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    name = entry_path(root, CONFIGS[1]).name
    with loader(root).store.lock(name, 1) as is_held:
        assert is_held
        assert libc.unshare(_NEW_PIDS) == 0

        def work() -> None:
            assert os.getpid() == 1
            store = loader(root).store
            with store.lock(name, 0.2) as is_held_twice:
                assert not is_held_twice, "the lock of another container was not seen"
            assert not store.prune().swept
            assert serve(root)[0] == "disk"

        trouble = in_child(work)
    assert not trouble, trouble
    return "locks hold across, nothing of the other's is swept"


def _empty_dir(mount: Path) -> str:
    """A Kubernetes emptyDir: root's, and everybody may write there."""
    tmpfs(mount)
    mount.chmod(0o777)
    mount.parent.chmod(0o755)
    trouble = in_child(lambda: serve(mount / "cache"), user=20_004)
    assert trouble.startswith("UnsafeCacheRoot: ") and "JITGEN_TRUST_SHARED" in trouble, trouble

    def work() -> None:
        with settings.scope(trust_shared=[mount]):
            assert serve(mount / "cache")[0] == "compiled"
            assert serve(mount / "cache")[0] == "disk"

    trusting = in_child(work, user=20_004)
    assert not trusting, trusting
    return f"refused with a way out, then served: {trouble}".replace(str(mount), "<volume>")


def _group_volume(mount: Path) -> str:
    """A volume with an fsGroup: mode 2775, and so is all below after the kubelet was there."""
    tmpfs(mount)
    mount.parent.chmod(0o755)
    os.chown(mount, 0, 3000)
    mount.chmod(0o2775)

    def served(tier: str) -> Callable[[], None]:
        def work() -> None:
            os.umask(0o002)
            with settings.scope(trust_shared=[mount]):
                assert serve(mount / "cache")[0] == tier

        return work

    first = _as_group(served("compiled"), 20_004)
    for path in mount.rglob("*"):  # what the kubelet does when the volume is mounted again
        path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
    second = _as_group(served("disk"), 20_005)
    assert not first and not second, (first, second)
    return "two users of one group share it"


def _as_group(work: Callable[[], None], user: int) -> str:
    def join() -> None:
        os.setgroups([3000])
        os.setgid(3000)
        os.setuid(user)
        work()

    return in_child(join)


CASES: dict[str, Case] = {
    "full": _full,
    "out of inodes": _inodes,
    "read-only": _read_only,
    "noexec": _noexec,
    "noexec for temporary files too": _noexec_tmp,
    **layered.CASES,
    "bind": _bind,
    "split": _split,
    "another process namespace": _other_pids,
    "emptyDir": _empty_dir,
    "fsGroup": _group_volume,
}
