# SPDX-License-Identifier: Apache-2.0
"""Caches in layers: the layers of a container's image, and roots that are only read."""

from __future__ import annotations

import os
from pathlib import Path

from jitgen.cache import Store
from jitgen.settings import settings
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
)
from tests.chaos.mounting import CONFIG, Case, command, entry_path, mount_at, serve, tmpfs


def _overlay(where: Path, *, writable: bool = True) -> tuple[Path, Path]:
    """Mount an overlay whose lower layer holds kernels; return its root and the upper layer."""
    parts = {name: where.parent / name for name in ("lower", "upper", "work")}
    for part in parts.values():
        part.mkdir()
    if writable:
        tmpfs(parts["work"].parent / "upper", "size=8m")
        for name in ("u", "w"):
            (parts["upper"] / name).mkdir()
    fill(parts["lower"] / "cache", 3)
    options = f"lowerdir={parts['lower']}"
    if writable:
        options += f",upperdir={parts['upper'] / 'u'},workdir={parts['upper'] / 'w'}"
    else:
        (where.parent / "empty").mkdir()
        options += f":{where.parent / 'empty'}"
    mount_at("-t", "overlay", "-o", options, "overlay", where)
    return where / "cache", parts["upper"] / "u"


def _overlay_remove(mount: Path) -> str:
    root, upper = _overlay(mount)
    assert serve(root)[0] == "disk"
    said = command(root, "rm", name_of(CONFIG))
    assert said.startswith("0: removed ") and not entry_path(root).exists(), said
    assert loader(root).store.read(entry_path(root).name) is None
    assert serve(root)[0] == "compiled"
    assert serve(root)[0] == "disk", "it could not be published again"
    return f"{said}; gone, and published again into {upper.name}"


def _overlay_clear(mount: Path) -> str:
    root, _ = _overlay(mount)
    said = command(root, "clear", "--yes")
    left = list((root / "v1" / "entries").glob("*/*"))
    assert said.startswith("0: removed 3 entries") and not left, (said, left)
    return said


def _overlay_prune(mount: Path) -> str:
    root, _ = _overlay(mount)
    for path in (root / "v1" / "entries").glob("*/*"):
        os.utime(path, (0, 0))
    said = command(root, "prune", "--size", "1")
    left = list((root / "v1" / "entries").glob("*/*"))
    assert "removed 3 entries" in said and not left, (said, left)
    return said


def _overlay_damage(mount: Path) -> str:
    root, _ = _overlay(mount)
    library = entry_path(root) / "kernel.so"
    library.unlink()
    library.write_bytes(b"damaged")
    assert serve(root)[0] == "compiled"
    assert serve(root)[0] == "disk", "every process compiles it again"
    said = command(root, "verify")
    assert said.startswith("0: "), said
    return f"compiled once, healed; verify: {said}"


def _overlay_read_only(mount: Path) -> str:
    """A container without a writable layer: damage stays, and that is said."""
    root, _ = _overlay(mount, writable=False)
    assert serve(root)[0] == "disk"
    lower = mount.parent / "lower" / "cache"
    library = entry_path(lower, CONFIGS[1]) / "kernel.so"
    library.unlink()
    library.write_bytes(b"damaged")
    with pretending(), hearing() as heard:
        assert result_of(loader(root).get(CONFIGS[1], ARCH)) == answer_of(CONFIGS[1])
    told = [line for line in heard if "cannot be moved away" in line]
    assert len(told) == 1, heard
    said = command(root, "verify")
    assert said.startswith("1: ") and "cannot be moved away" in said, said
    return told[0].replace(str(root), "<root>")


def _base(mount: Path) -> str:
    """An image's cache below one of our own."""
    base, root = mount / "image", mount / "own"
    tmpfs(mount)
    fill(base, 3)
    with settings.scope(base=[base]):
        assert serve(root)[0] == "base"
        assert not (root / "v1").exists() or not list((root / "v1" / "entries").glob("*/*"))
        library = entry_path(base) / "kernel.so"
        library.unlink()
        library.write_bytes(b"damaged")
        tier, heard = serve(root)
        assert tier == "compiled" and len(heard) == 1 and "is damaged" in heard[0], heard
        assert serve(root)[0] == "disk", "it was not published above"
        os.environ["JITGEN_BASE"] = str(base)
        said = command(root, "rm", name_of(CONFIGS[1]))
        assert said.startswith("0: hid ") and entry_path(base, CONFIGS[1]).exists(), said
        assert Store.open(root).read(entry_path(base, CONFIGS[1]).name) is None
        listed = command(root, "ls")
        assert "which is only read" in listed, listed
    return f"read from the base, healed above it; rm: {said}".replace(str(mount), "")


def _base_closed(mount: Path) -> str:
    """An image's cache that only root may read, used by another user."""
    mount.chmod(0o755)
    mount.parent.chmod(0o755)
    fill(mount / "image", 1)
    (mount / "own").mkdir()
    os.chown(mount / "own", 20_004, 20_004)

    def work() -> None:
        with settings.scope(base=[mount / "image"]):
            tier, heard = serve(mount / "own" / "cache")
        assert tier == "compiled" and len(heard) == 1 and "chmod -R a+rX" in heard[0], heard

    trouble = in_child(work, user=20_004)
    assert not trouble, trouble
    return "compiled, with one line that says how to open it"


CASES: dict[str, Case] = {
    "overlay: remove": _overlay_remove,
    "overlay: clear": _overlay_clear,
    "overlay: prune": _overlay_prune,
    "overlay: damage": _overlay_damage,
    "overlay without an upper layer": _overlay_read_only,
    "a base below": _base,
    "a base that is closed": _base_closed,
}
