# SPDX-License-Identifier: Apache-2.0
"""
Finds settings with allowed values that cannot work on this machine, when a session first opens its
cache.

Otherwise the first use of each setting would fail: that of a token at the first fetch, that of a
trust document at the first kernel that is not on disk. In production that is hours after the start.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from jitgen.config.plugins import OPERATIONS, TARGETS
from jitgen.errors import ConfigError, SettingError
from jitgen.events import warn_once
from jitgen.ownership.files import opened
from jitgen.settings import settings
from jitgen.support.documents import BadDocument
from jitgen.targets.devices import require_arch, require_device


def check() -> None:
    """
    Check that the targets, devices, plug-ins, files and folders named by the settings exist.

    Raises:
        SettingError: A target, a device or a distribution is not known; a folder of edited kernels
            or the file of a token cannot be read; the path of a recording is a folder; or only
            signed kernels may be loaded, and no trust document is set.
        OverrideError: A file of JITGEN_OVERRIDE is not an edited kernel.
    """
    check_names()
    if settings.override is not None:
        from jitgen.runtime import override

        override.of_folder(settings.override)
    if settings.record is not None:
        _refuse_folder(settings.record)
    _check_trust()
    if settings.service and settings.token_file is not None:
        _require_file("JITGEN_TOKEN_FILE", settings.token_file)


def check_names() -> None:
    """
    Check that targets, devices and distributions are known.

    Raises:
        SettingError: JITGEN_ARCH is not the name of a target, JITGEN_DEVICE not that of a device,
            or a distribution in JITGEN_PLUGINS is not installed.
    """
    if settings.plugins:
        try:
            for kind in (TARGETS, OPERATIONS):
                kind.names()  # raises where a distribution is not installed, or a name is taken
        except ConfigError as error:
            raise SettingError(f"JITGEN_PLUGINS is not allowed: {error}") from None
    require_arch()
    require_device()


def _check_trust() -> None:
    fetches = settings.verify == "remote" and bool(settings.remote or settings.service)
    is_needed = fetches or settings.verify == "always"
    if settings.verify == "off" or (settings.trust is None and not is_needed):
        return
    if settings.trust is None:
        what = "JITGEN_REMOTE" if settings.remote else "JITGEN_SERVICE"
        what = (
            f"{what} is set, and what is fetched must be signed"
            if fetches
            else ("JITGEN_VERIFY=always loads only what is signed")
        )
        raise SettingError(
            f"{what}, but JITGEN_TRUST does not say whose signatures count; name a trust document "
            "(jitgen trust init makes one), or set JITGEN_VERIFY=off to load unsigned kernels, too"
        )
    try:
        _require_file("JITGEN_TRUST", settings.trust)
    except SettingError as error:  # the file may appear later; until then kernels are compiled here
        warn_once(f"trust {error}", "nothing that must be signed is accepted: %s", error)


def _refuse_folder(record: Path) -> None:
    """Refuse a folder as the path of a recording, because files would be written beside it."""
    with suppress(OSError):  # an impossible name is reported when the file is written
        if record.is_dir():
            raise SettingError(
                f"JITGEN_RECORD={record} is a folder: name a file, such as {record / 'calls.json'}"
            )


def _require_file(variable: str, path: Path) -> None:
    """Raise SettingError unless `path` can be opened in the same way as later."""
    try:
        with opened(path):
            return
    except OSError as error:
        raise SettingError(f"{variable}={path} cannot be read: {error.strerror or error}") from None
    except BadDocument as error:
        raise SettingError(f"{variable}={path} is not used: {error}") from None
