# SPDX-License-Identifier: Apache-2.0
"""
The values of `config=` in a call: a config of the operation, or an edited kernel of one.

A graph of torch holds no objects of jitgen. In a graph, a config is the name of its kernel, and an
edited kernel is this name with the digest of its source; only a process that has read the file of
the source can run it.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from jitgen.config import Arch, Config, Numerics
from jitgen.errors import InputError
from jitgen.runtime.override import Override
from jitgen.runtime.spec import sha256
from jitgen.selection.numerics import require_order

_Config = TypeVar("_Config", bound=Config)

_EDITED = "@"
"""Separator of name and digest."""

_read: dict[str, Override] = {}
"""Edited kernels in graphs of this process, by their names in graphs."""


def explicit_config(
    config: object, kind: type[_Config], arch: Arch, numerics: Numerics | str | None = None
) -> _Config:
    """
    Return the config of an explicit `config` on `arch`: itself, or the original config of an edited
    kernel.

    Raises:
        InputError: It is neither a `kind` nor an edited kernel of one, or is for another target; or
            its order of sums is not allowed by `numerics` (None: JITGEN_NUMERICS). An edited kernel
            counts as the config that it was made from.
    """
    plain = plain_of(config, kind, arch)
    require_order(plain, arch, numerics)
    return plain


def plain_of(config: object, kind: type[_Config], arch: Arch) -> _Config:
    """Return the config of an explicit `config`, whose order of sums is not checked."""
    plain = config.on(arch) if isinstance(config, Override) else config
    if not isinstance(plain, kind):
        got = type(plain).__name__ + (f" in {config.path}" if isinstance(config, Override) else "")
        hint = f"; the source in a file is jitgen.override({plain!r})" if _is_path(plain) else ""
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InputError("config", f"must be {article} {kind.__name__} (got {got}){hint}")
    return plain


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.endswith(".py")


def graph_name(config: object, kind: type[Config], arch: Arch) -> str:
    """
    Return the text that names `config` in a graph for `arch`.

    Raises:
        InputError: It is neither a `kind` nor an edited kernel of one, or is for another target.
    """
    name = str(plain_of(config, kind, arch).name(arch))
    if isinstance(config, Override):
        name = f"{name}{_EDITED}{sha256(config.text)}"
        _read.setdefault(name, config)
    return name


@cache
def of_graph(name: str, kind: type[Config], arch: Arch) -> Config | Override:
    """
    Return the config, or the edited kernel, that a graph calls `name`: the same object each time,
    because launches are cached by its identity.

    Raises:
        InputError: It is for another target, or this process has not read the file.
        ConfigError: `name` is not the name of a kernel.
    """
    kernel, _, digest = name.partition(_EDITED)
    config, of_name = kind.parse(kernel)
    if of_name is not arch:
        raise InputError("config", f"must be for {arch}, as the tensors are (got {kernel})")
    if digest and name not in _read:
        raise InputError(
            "config",
            f"is {kernel} as edited in another process: a graph with an edited "
            "kernel runs where it was traced",
        )
    return _read[name] if digest else config
