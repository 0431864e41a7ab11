# SPDX-License-Identifier: Apache-2.0
"""What a kernel is, with all that follows from it: made once and passed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jitgen.codegen.parameters import derived
from jitgen.config import Arch, Config
from jitgen.runtime import key as keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """
    One kernel of one target.

    Attributes:
        config: Its config.
        arch: The target.
        name: Its name.
        key: Digest of its key document.
    """

    config: Config
    arch: Arch
    name: str
    key: str

    @property
    def derived(self) -> dict[str, Any]:
        """The numbers that its template is given besides the config."""
        return derived(self.config, self.arch)

    @property
    def document(self) -> dict[str, Any]:
        """The key document."""
        return keys.document(self.config, self.arch)


def spec_of(config: Config, arch: Arch) -> KernelSpec:
    """
    Return what `config` is on `arch`.

    Raises:
        UnsupportedConfig: `arch` cannot run it.
        ToolchainError: The compiler's versions, which the key holds, are not known here.
    """
    return KernelSpec(config=config, arch=arch, name=config.name(arch), key=keys.key(config, arch))
