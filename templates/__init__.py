# SPDX-License-Identifier: Apache-2.0
"""
The kernel templates: one folder for each target.

A template is a file that stays valid Python while it is not rendered. This module knows which files
make up a target's template and which parameters they read, without importing Jinja: a warm start
needs the digest only.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent

_STATEMENT = re.compile(
    r"^[ \t]*#%[-+]?[ \t]*(?:include|import|from|extends)\b(.*)$|(\{%.*)$", re.MULTILINE
)
_REFERENCE = re.compile(
    r"""[ \t]*"(?P<begin>[\w/.]+)"([ \t]*~[ \t]*\w+[ \t]*~[ \t]*"(?P<end>[\w.]+)")?"""
    r"""(?:[ \t]+import[ \t]+\w+)?[ \t]*"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """
    The template of one target.

    Attributes:
        entry: The file that is rendered, relative to this folder.
        parameters: What its files read, all of it and nothing else.
    """

    entry: str
    parameters: frozenset[str]


_COMMON = (
    *("name", "config_json", "layout", "a_dtype", "out_dtype", "scale_granularity"),
    *("tile_m", "tile_n", "tile_k"),
)
_SM90_CONFIG = ("cluster_m", "cluster_n", "raster", "stream_b", "use_pdl", "split_k")
_SM90_DERIVED = (
    *("math_warpgroups", "waves", "threads", "load_registers", "math_registers", "num_ab_stage"),
    *(
        "part_m",
        "out_n",
        "epilogue_n",
        "max_entries",
        "scale_chunk",
        "scale_columns",
        "scale_values",
        "scale_box",
        "scale_pitch",
    ),
)

TEMPLATES = {
    "cpu": Template(
        entry="cpu/grouped_gemm.py.jinja",
        parameters=frozenset(_COMMON),
    ),
    "sm90": Template(
        entry="sm90/grouped_gemm.py.jinja",
        parameters=frozenset((*_COMMON, *_SM90_CONFIG, *_SM90_DERIVED)),
    ),
}


@cache
def _contents(family: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    waiting = [TEMPLATES[family].entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (ROOT / name).read_bytes()
            waiting += referred(name, found[name].decode("utf-8"))
    return dict(sorted(found.items()))


@cache
def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()))


def referred(name: str, text: str) -> list[str]:
    """
    Return the files that template `name` may include, by the names that its text spells out.

    A name may have one part that is a value, as in ``"sm90/scales_" ~ scale_granularity ~
    ".py.jinja"``: that stands for every file that begins and ends so.

    Raises:
        ValueError: A statement is written in another way, or fits no file: the digest would miss
            what it includes.
    """
    found: list[str] = []
    for statements in _STATEMENT.findall(text):
        statement = "".join(statements)
        match = _REFERENCE.fullmatch(statement)
        if match is None:
            raise ValueError(
                f'{name}: cannot tell which files {statement.strip()} means; write "file" or '
                '"begin" ~ value ~ "end" on a line of its own'
            )
        begin, end = match["begin"], match["end"]
        names = [each for each in _names(begin.rpartition("/")[0]) if each.startswith(begin)]
        names = [each for each in names if each.endswith(end)] if end else [begin]
        if not names:
            raise ValueError(f"{name}: there is no file for {statement.strip()}")
        found += names
    return found


def files(family: str) -> tuple[str, ...]:
    """Return the template of `family` and every file it refers to, in the order of their names."""
    return tuple(_contents(family))


@cache
def digest(family: str) -> str:
    """
    Return the SHA-256 over names and bytes of every file of a template: with a config it fixes the
    source.
    """
    sha = hashlib.sha256()
    for name, content in _contents(family).items():
        sha.update(f"{name}\0{len(content)}\0".encode())
        sha.update(content)
    return sha.hexdigest()
