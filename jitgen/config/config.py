# SPDX-License-Identifier: Apache-2.0
"""
The config of a kernel: everything that changes the generated source, and nothing else.

Sizes (rows, columns, the number of groups, the number of SMs) are never part of it: one kernel
serves every shape. Which fields there are, each operation says for itself.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from jitgen.config.arch import Arch
from jitgen.config.part import Part
from jitgen.config.rooms import OPERATIONS, TARGETS
from jitgen.errors import ConfigError
from jitgen.text import shown

EXAMPLE = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a"


class Config(Part):
    """
    One kernel, before its target is known. The config of an operation is a subclass: a frozen,
    keyword-only dataclass with slots, whose fields are made by `jitgen.config.part.of`.

    Attributes:
        op: Name of the operation.
    """

    __slots__ = ()
    op: ClassVar[str]

    @abstractmethod
    def words(self) -> str:
        """
        Return what tells this config from others of its operation, in words of ``[a-z0-9]`` joined
        by ``_``: the middle of its name.
        """

    @property
    @abstractmethod
    def short(self) -> str:
        """What tells this config from others for the same problem, for a reader."""

    @classmethod
    @abstractmethod
    def of_words(cls, words: str) -> Self | None:
        """Return the config whose `words` these are; None where they are nobody's."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return what a template may ask of this config, by name: integers, booleans and words."""

    def name(self, arch: Arch | str) -> str:
        """
        Return the readable, unique name: a valid C symbol and file name that `parse` reads back.
        """
        return f"{self.op}_{self.words()}_{arch}"

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form: only objects, strings, ints, booleans and null."""
        return {"op": self.op, **Part.to_json(self)}

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the config that `to_json` wrote, of whatever operation; a field with a default may be
        left out, and ``op`` where the class says it.

        Raises:
            ConfigError: `document` is no object, or has an unknown, missing or bad field.
        """
        if not isinstance(document, dict):
            raise ConfigError(f"a config must be a JSON object (got {shown(document)})")
        own = getattr(cls, "op", None)
        op = document.get("op", own)
        if not isinstance(op, str) or (own is not None and op != own):
            expected = own or ", ".join(OPERATIONS.names())
            raise ConfigError(f"op must be one of {expected} (got {shown(op)})")
        if own is None:
            return OPERATIONS.get(op).config_type.from_json(document)  # type: ignore[no-any-return]
        fields = {name: value for name, value in document.items() if name != "op"}
        return super().from_json(fields)

    @classmethod
    def parse(cls, name: str) -> tuple[Self, Arch]:
        """
        Return the config and target that `name` stands for; the inverse of `name`.

        Raises:
            ConfigError: `name` is no kernel name, or not one of this class; the message shows one.
        """
        found = _read(name) if isinstance(name, str) else None
        if found is None or not isinstance(found[0], cls):
            raise ConfigError(f"{shown(name)} is no kernel name; one looks like {EXAMPLE}")
        return found  # type: ignore[return-value]


def _read(name: str) -> tuple[Config, Arch] | None:
    op = _longest([op for op in OPERATIONS.names() if name.startswith(f"{op}_")])
    arch = _longest([arch for arch in TARGETS.names() if name.endswith(f"_{arch}")])
    if not op or not arch:
        return None
    config = OPERATIONS.get(op).config_type.of_words(name[len(op) + 1 : -len(arch) - 1])
    return None if config is None else (config, Arch(arch))


def _longest(words: list[str]) -> str:
    """Return the longest word: of two operations one's name may begin with the other's."""
    return max(words, key=len, default="")
