# SPDX-License-Identifier: Apache-2.0
"""The targets that kernels are generated for."""

from __future__ import annotations

from enum import StrEnum

from jitgen.errors import ConfigError
from jitgen.text import shown


class Arch(StrEnum):
    """
    A target, spelled as the compiler spells it.

    The suffix ``a`` belongs to the name: WGMMA and setmaxnreg exist in ``sm_90a`` and not in
    ``sm_90``.
    """

    CPU = "cpu"
    SM_90A = "sm_90a"

    @property
    def family(self) -> str:
        """The folder of templates that serves this target: ``cpu`` or ``sm90``."""
        return _FAMILY[self]

    @property
    def is_gpu(self) -> bool:
        """Whether kernels of this target run on a GPU."""
        return self is not Arch.CPU

    @classmethod
    def parse(cls, text: str) -> Arch:
        """
        Return the target that `text` names.

        Raises:
            ConfigError: `text` is no target; the message lists all of them.
        """
        try:
            return cls(text)
        except ValueError:
            allowed = ", ".join(cls)
            raise ConfigError(f"arch {shown(text)} is not known; allowed: {allowed}") from None

    @classmethod
    def of_capability(cls, major: int, minor: int) -> Arch | None:
        """
        Return the target of a CUDA compute capability, or None where jitgen has no kernels for it.
        """
        return _OF_CAPABILITY.get((major, minor))


_FAMILY = {Arch.CPU: "cpu", Arch.SM_90A: "sm90"}
_OF_CAPABILITY = {(9, 0): Arch.SM_90A}
