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

_REFERENCE = re.compile(r"""#%-?\s*(?:include|import|from|extends)\s+["']([^"']+)["']""")


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
    *("name", "layout", "a_dtype", "out_dtype", "scale_granularity"),
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
            waiting += _REFERENCE.findall(found[name].decode("utf-8"))
    return dict(sorted(found.items()))


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
