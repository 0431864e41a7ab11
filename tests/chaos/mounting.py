# SPDX-License-Identifier: Apache-2.0
"""What the cases of mounts do: mount, serve a kernel, run a command, hear what is said."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.chaos.kernels import ARCH, CONFIGS, answer_of, hearing, loader, pretending, result_of

CONFIG = CONFIGS[0]
Case = Callable[[Path], str]
_NEW_MOUNTS = 0x00020000


def private_mounts() -> None:
    """Leave the mount namespace that this process shares with others."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount_at("--make-rprivate", "/")


def mount_at(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def tmpfs(where: Path, options: str = "size=4m") -> None:
    mount_at("-t", "tmpfs", "-o", f"mode=0700,{options}", "none", where)


def serve(root: Path, count: int = 1) -> tuple[str, list[str]]:
    """Get kernels as a program does; return the tier of the first, and the warnings."""
    with pretending(), hearing() as heard:
        subject = loader(root)
        kernels = [subject.get(config, ARCH) for config in CONFIGS[:count]]
    for config, kernel in zip(CONFIGS, kernels, strict=False):
        assert result_of(kernel) == answer_of(config)
    return kernels[0].tier, heard


def command(root: Path, *words: str) -> str:
    """Run a command; return its exit code and all it said."""
    from jitgen.cli.main import run as run_command

    said = io.StringIO()
    os.environ["JITGEN_CACHE_DIR"] = str(root)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_command(["cache", *words])
    return f"{int(code)}: {' '.join(said.getvalue().split())}"


def entry_path(root: Path, config: object = CONFIG) -> Path:
    from jitgen.runtime.spec import key

    name = key(config, ARCH)  # type: ignore[arg-type]
    return root / "v1" / "entries" / name[:2] / name
