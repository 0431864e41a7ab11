# SPDX-License-Identifier: Apache-2.0
"""Kernels that tests compile: by their words, for an emulated GPU, and how often they are tried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Any, TypeVar

import pytest

from jitgen.codegen.render import render
from jitgen.config import Arch, Config
from jitgen.emulator import Artifact
from jitgen.verify.artifacts import compiled

Kind = TypeVar("Kind", bound=Config)


def of_words(kind: type[Kind], words: str) -> Kind:
    """Return the config that is called so in names of kernels."""
    config = kind.parse_name(words)
    assert config is not None, words
    return config


@cache
def on_gpu(config: Config) -> Artifact:
    """Return a kernel of sm_90a, which an emulator can run."""
    return compiled(render(config, Arch.SM_90A))


def often(
    every: Iterable[Any], chosen: Collection[Any], name: Callable[[Any], str] = str
) -> list[Any]:
    """Return parameters of a test: those that are `chosen` for every push, others for the night."""
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            id=name(each),
            marks=() if each in chosen else pytest.mark.nightly,
        )
        for each in every
    ]
