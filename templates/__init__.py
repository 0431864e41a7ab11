# SPDX-License-Identifier: Apache-2.0
"""
The kernel templates: a folder for each family of targets, and one for what they share.

``FAMILY/OPERATION.py.jinja`` is the entry of an operation's kernels, ``FAMILY/OPERATION/`` has the
partials that only they include, ``FAMILY/shared/`` those of several operations. Below ``shared/``
the same holds for what several families have in common.

A template is a file that stays valid Python while it is not rendered. This module knows which files
make it up, without importing Jinja: a warm start needs the digest only. Which template serves a
target's operation, and which parameters it reads, the target says.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitgen.targets.protocol import Template

ROOT = Path(__file__).resolve().parent

_STATEMENT = r"^[ \t]*#%[-+]?[ \t]*(?:include|import|from|extends)\b(.*)$|(\{%.*)$"
_REFERENCE = (
    r"""[ \t]*"(?P<begin>[\w/.]+)"([ \t]*~[ \t]*\w+[ \t]*~[ \t]*"(?P<end>[\w.]+)")?"""
    r"""(?:[ \t]+import[ \t]+\w+)?[ \t]*"""
)


def roots(root: Path) -> tuple[Path, ...]:
    """Return where files of a template below `root` are looked for: there, then among jitgen's."""
    return (root,) if root == ROOT else (root, ROOT)


def path_of(root: Path, name: str) -> Path:
    """
    Return the path of a template's file.

    Raises:
        ValueError: There is none.
    """
    for folder in roots(root):
        if (path := folder / name).is_file():
            return path
    raise ValueError(f"there is no template {name}")


@cache
def contents(root: Path, entry: str) -> dict[str, bytes]:
    """Return the bytes of a template's entry and of every file it refers to, by sorted names."""
    found: dict[str, bytes] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = path_of(root, name).read_bytes()
            waiting += referred(name, found[name].decode("utf-8"), root)
    return dict(sorted(found.items()))


@cache
def _names(root: Path, folder: str) -> tuple[str, ...]:
    places = [place / folder for place in roots(root) if (place / folder).is_dir()]
    return tuple(sorted({f"{folder}/{path.name}" for place in places for path in place.iterdir()}))


def referred(name: str, text: str, root: Path = ROOT) -> list[str]:
    """
    Return the files that template `name` may include, by the names that its text spells out.

    A name may have one part that is a value, as in ``"sm90/grouped_gemm/scales_" ~
    scale_granularity ~ ".py.jinja"``: that stands for every file that begins and ends so.

    Raises:
        ValueError: A statement is written in another way, or fits no file: the digest would miss
            what it includes.
    """
    found: list[str] = []
    marked = (line for line in text.split("\n") if "#%" in line or "{%" in line)
    for statements in re.findall(_STATEMENT, "\n".join(marked), re.MULTILINE):
        statement = "".join(statements)
        match = re.fullmatch(_REFERENCE, statement)
        if match is None:
            raise ValueError(
                f'{name}: cannot tell which files {statement.strip()} means; write "file" or '
                '"begin" ~ value ~ "end" on a line of its own'
            )
        begin, end = match["begin"], match["end"]
        if end is None:
            found.append(begin)
            continue
        names = [
            each
            for each in _names(root, begin.rpartition("/")[0])
            if each.startswith(begin) and each.endswith(end)
        ]
        if not names:
            raise ValueError(f"{name}: there is no file for {statement.strip()}")
        found += names
    return found


def files(template: Template) -> tuple[str, ...]:
    """Return a template's entry and every file it refers to, in the order of their names."""
    return tuple(contents(template.root, template.entry))


def digest(template: Template) -> str:
    """
    Return the SHA-256 over names and bytes of every file of a template: with a config and the
    numbers that follow from it, it fixes the source.
    """
    return _digest(template.root, template.entry)


@cache
def _digest(root: Path, entry: str) -> str:
    sha = hashlib.sha256()
    for name, content in contents(root, entry).items():
        sha.update(f"{name}\0{len(content)}\0".encode())
        sha.update(content)
    return sha.hexdigest()
