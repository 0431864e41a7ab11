# SPDX-License-Identifier: Apache-2.0
"""
What is compiled for a config: what the templates render, or the edited source of JITGEN_OVERRIDE.

Whoever serves, compiles or prewarms for this program asks `jitgen.runtime.spec.serving`, which asks
here; a service, which compiles for others, does not. The folder is looked at whenever a kernel is
not in memory: kernels that were loaded before a file was edited go on serving.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.config import Arch, Config
from jitgen.documents import BadDocument
from jitgen.errors import OverrideError, SettingError
from jitgen.runtime.override import MAX_BYTES, Override, parse, text_of
from jitgen.runtime.spec import plain, serving
from jitgen.settings import settings
from jitgen.trusted_files import Stamp, Unsafe, names_in, opened

if TYPE_CHECKING:
    from jitgen.runtime.spec import Wanted


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
    found: dict[tuple[Config, Arch], Override] = {}
    for edited in _each(folder):
        other = found.setdefault((edited.config, edited.arch), edited)
        if other is not edited:
            raise OverrideError(edited.path, f"stands for {edited.name}, and so does {other.path}")
    return found


def _each(folder: Path) -> Iterator[Override]:
    """Yield the edited kernel in each file; what is run is what was checked."""
    try:
        for name in sorted(names_in(folder)):
            if name.endswith(".py") and name[0] != ".":
                yield _edited(folder / name)
    except Unsafe as error:
        raise SettingError(
            f"JITGEN_OVERRIDE={folder} is not safe: what is there runs as you, and {error}"
        ) from None
    except OSError as error:
        raise SettingError(
            f"JITGEN_OVERRIDE={folder} cannot be read: {error.strerror or error}; it must be a "
            "folder with edited kernels"
        ) from None


def _edited(path: Path) -> Override:
    """Return the edited kernel in a file, parsed again only if the file was changed."""
    try:
        with opened(path) as file:
            stamp, edited = _parsed.get(path, (None, None))
            if edited is not None and stamp == file.stamp:
                return edited
            edited = parse(text_of(file.read(MAX_BYTES), path), path)
            if len(_parsed) >= _MOST_PARSED:
                _parsed.clear()
            _parsed[path] = (file.stamp, edited)
            return edited
    except Unsafe:
        raise
    except BadDocument as error:
        raise OverrideError(path, f"cannot be read: {error}") from None


_MOST_PARSED = 256
_parsed: dict[Path, tuple[Stamp, Override]] = {}
