# SPDX-License-Identifier: Apache-2.0
"""
What is compiled for a config: what the templates render, or the edited source of JITGEN_OVERRIDE.

Whoever serves, compiles or prewarms for this program asks `jitgen.runtime.spec.serving`, which asks
here; a service, which compiles for others, does not. The folder is looked at whenever a kernel is
not in memory: kernels that were loaded before a file was edited go on serving.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.config import Arch, Config
from jitgen.errors import OverrideError, SettingError
from jitgen.runtime.override import Override, override
from jitgen.runtime.spec import plain, serving
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.runtime.spec import Wanted

_Files = tuple[tuple[Path, int, int], ...]


def found(wanted: Wanted, arch: Arch) -> Override | None:
    """
    Return the edited kernel that serves `wanted` on `arch`: itself, or that of JITGEN_OVERRIDE.

    Raises:
        OverrideError: A file of JITGEN_OVERRIDE cannot be used.
        SettingError: Its folder cannot be.
    """
    if isinstance(wanted, Override):
        return wanted
    folder = settings.override
    return None if folder is None else of_folder(folder).get((wanted, arch))


def called(wanted: Wanted, arch: Arch) -> str:
    """Return what messages call a kernel: its name, and the file of an edited one."""
    edited, name = found(wanted, arch), plain(wanted).name(arch)
    return name if edited is None else f"{name} as edited in {edited.path}"


def refuse_to_share(configs: Iterable[Config], arch: Arch) -> None:
    """
    Do nothing where none of `configs` has an edited kernel.

    Raises:
        SettingError: One has, and what is to be done sends kernels to other hosts.
    """
    for config in configs:
        if serving(config, arch).is_edited:
            raise SettingError(
                f"JITGEN_OVERRIDE has {config.name(arch)}, and an edited kernel is sent to nobody: "
                "unset it here, and run `jitgen prewarm` with it on each host"
            )


def of_folder(folder: Path) -> dict[tuple[Config, Arch], Override]:
    """
    Return the edited kernels in the files ``*.py`` of a folder, by what they stand for.

    Raises:
        SettingError: It cannot be read, or others can write there.
        OverrideError: A file is none, or two stand for one config.
    """
    return _parsed(_files(folder))


def _files(folder: Path) -> _Files:
    """Return the files, each with when it was changed and its size."""
    from jitgen.cache.folder import distrust, is_shared, shared_folders

    try:
        with os.scandir(folder) as entries:
            names = sorted(x.path for x in entries if x.name.endswith(".py") and x.name[0] != ".")
        found = [(Path(name), os.stat(name)) for name in names]  # noqa: PTH116  # of a str
        reasons = [(folder, distrust(folder.stat())), *((p, distrust(stat)) for p, stat in found)]
    except OSError as error:
        raise SettingError(
            f"JITGEN_OVERRIDE={folder} cannot be read: {error.strerror or error}; it must be a "
            "folder with edited kernels"
        ) from None
    is_trusted = is_shared(Path(os.path.realpath(folder)), shared_folders())
    for path, reason in reasons:
        if reason and not is_trusted:
            raise SettingError(
                f"JITGEN_OVERRIDE={folder} is not safe: {path} {reason}, and what is there runs "
                "as you; take the right to write from others, or name it in JITGEN_TRUST_SHARED"
            )
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in found)


@lru_cache(maxsize=8)
def _parsed(files: _Files) -> dict[tuple[Config, Arch], Override]:
    found: dict[tuple[Config, Arch], Override] = {}
    for path, _, _ in files:
        edited = override(path)
        other = found.setdefault((edited.config, edited.arch), edited)
        if other is not edited:
            raise OverrideError(path, f"stands for {edited.name}, and so does {other.path}")
    return found
