# SPDX-License-Identifier: Apache-2.0
"""
Setuptools as the build backend, with archives that depend on the sources alone.

Setuptools writes the times and modes of files, and the time of the build, into its archives. Here
all times are ``SOURCE_DATE_EPOCH``; without it that of the commit, and 1980-01-01, the first day of
zip, where there is no checkout. Modes are 0644 or 0755, and owners have no names. So equal sources
give equal bytes, with any umask and in any folder. It imports setuptools alone.
"""

import gzip
import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path
from time import gmtime

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  what a frontend calls besides
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parents[1]
FIRST_DAY = 315_532_800
"""1980-01-01 in UTC, before which zip knows no time."""


def epoch() -> int:
    """
    Return the time of all files, in seconds since 1970.

    Raises:
        SystemExit: SOURCE_DATE_EPOCH is no number.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH") or _of_commit()
    if not text.isdecimal():
        raise SystemExit(f"SOURCE_DATE_EPOCH must be seconds since 1970 (got {text!r})")
    return max(int(text), FIRST_DAY)


def _of_commit() -> str:
    if not (ROOT / ".git").exists():  # a source distribution within another checkout
        return str(FIRST_DAY)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return str(FIRST_DAY)
    return done.stdout.strip()


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    """Build the source distribution; returns the name of its file."""
    name = build_meta.build_sdist(sdist_directory, config_settings)
    normalise_tar(Path(sdist_directory, name), epoch())
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """Build the wheel; returns the name of its file."""
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    normalise_zip(Path(wheel_directory, name), epoch())
    return name


def normalise_tar(path: Path, at: int) -> None:
    """Write a tar.gz anew: files in the order of their names, without times, modes, owners."""
    made = io.BytesIO()
    with (
        tarfile.open(path) as was,
        gzip.GzipFile("", "wb", 9, made, mtime=at) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as now,
    ):
        for member in sorted(was.getmembers(), key=lambda each: each.name):
            member.mtime, member.pax_headers = at, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            is_executable = member.isdir() or member.mode & 0o100
            member.mode = 0o755 if is_executable else 0o644
            now.addfile(member, was.extractfile(member) if member.isreg() else None)
    path.write_bytes(made.getvalue())


def normalise_zip(path: Path, at: int) -> None:
    """Write a zip anew: files in the order of their names, without times and modes."""
    made = io.BytesIO()
    with zipfile.ZipFile(path) as was, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as now:
        for member in sorted(was.infolist(), key=_last_the_metadata):
            info = zipfile.ZipInfo(member.filename, gmtime(at)[:6])
            info.compress_type = zipfile.ZIP_DEFLATED
            is_executable = member.external_attr >> 16 & 0o100
            info.external_attr = (0o100755 if is_executable else 0o100644) << 16
            now.writestr(info, was.read(member))
    path.write_bytes(made.getvalue())


def _last_the_metadata(member: zipfile.ZipInfo) -> tuple[bool, str]:
    """Return the place of a file in a wheel, whose metadata the specification wants at its end."""
    return ".dist-info/" in member.filename, member.filename
