# SPDX-License-Identifier: Apache-2.0
"""A kernel's name: its operation, the words of its config, and its target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jitgen.config.plugins import OPERATIONS, TARGETS, Arch
from jitgen.support.moved import KINDS

if TYPE_CHECKING:
    from jitgen.config.config import Config


def read(name: str) -> tuple[Config, Arch] | None:
    """
    Return the config and target of a kernel's name; None if `name` is not a kernel's name.

    Raises:
        ConfigError: A word of it is not allowed; the message lists the allowed ones.
    """
    op, arch = _op_of(name), _arch_of(name)
    if not op or not arch:
        return None
    config = OPERATIONS.get(op).config_type.parse_name(name[len(op) + 1 : -len(arch) - 1])
    return None if config is None else (config, Arch(arch))


def what_is_wrong(name: object) -> str:
    """
    Return the end of an error about a wrong `name`: which part is unknown, or the command that
    lists names; empty if the text has no parts.
    """
    if not isinstance(name, str) or "_" not in name:
        return ""
    op = name if name in OPERATIONS.names() else _op_of(name)
    op = KINDS.get(op, op)
    if not op:
        return f": it begins with no operation ({', '.join(sorted(OPERATIONS.names()))})"
    if not _arch_of(name):
        return f": it ends with no target ({', '.join(sorted(TARGETS.names()))})"
    return f": `jitgen configs --op {op}` lists those of {op}"


def _op_of(name: str) -> str:
    return _longest(op for op in (*OPERATIONS.names(), *KINDS) if name.startswith(f"{op}_"))


def _arch_of(name: str) -> str:
    return _longest(arch for arch in TARGETS.names() if name.endswith(f"_{arch}"))


def _longest(words: Iterable[str]) -> str:
    """Return the longest word: one operation's name may be the beginning of another's."""
    return max(words, key=len, default="")
