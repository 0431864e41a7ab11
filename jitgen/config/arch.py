# SPDX-License-Identifier: Apache-2.0
"""The names of the targets that kernels are generated for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from jitgen.config.rooms import TARGETS
from jitgen.errors import ConfigError

_made: dict[str, Arch] = {}


class _Names(type):
    """What makes ``for arch in Arch`` walk over every target there is."""

    def __iter__(cls) -> Iterator[Arch]:
        return map(Arch, TARGETS.names())

    def __contains__(cls, name: object) -> bool:
        return name in TARGETS

    def __len__(cls) -> int:
        return len(TARGETS.names())


class Arch(str, metaclass=_Names):
    """
    A target, spelled as the compiler spells it; there is one object for each name.

    The suffix ``a`` belongs to the name: WGMMA and setmaxnreg exist in ``sm_90a`` and not in
    ``sm_90``. What a target is and can, its folder in `jitgen.targets` says.
    """

    __slots__ = ()

    CPU: ClassVar[Arch]
    SM_90A: ClassVar[Arch]

    def __new__(cls, name: str) -> Self:  # noqa: D102  # see the class
        known = _made.get(name)
        if known is None:
            if name not in TARGETS:
                raise ValueError(name)
            known = _made[name] = super().__new__(cls, name)
        return known  # type: ignore[return-value]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @property
    def family(self) -> str:
        """The folder of templates that serves this target: ``cpu`` or ``sm90``."""
        return str(TARGETS.get(self).family)

    @property
    def is_gpu(self) -> bool:
        """Whether kernels of this target run on a GPU."""
        return bool(TARGETS.get(self).is_gpu)

    @classmethod
    def parse(cls, text: str) -> Arch:
        """
        Return the target that `text` names.

        Raises:
            ConfigError: `text` is no target; the message lists all of them.
        """
        try:
            return cls(text)
        except (ValueError, TypeError):
            TARGETS.get(text if isinstance(text, str) else repr(text))  # tells which there are
            raise ConfigError(f"arch {text!r} is no text") from None

    @classmethod
    def of_capability(cls, major: int, minor: int) -> Arch | None:
        """
        Return the target of a CUDA compute capability, or None where jitgen has no kernels for it.
        """
        return next((arch for arch in Arch if TARGETS.get(arch).runs_on(major, minor)), None)


Arch.CPU = Arch("cpu")
Arch.SM_90A = Arch("sm_90a")
