# SPDX-License-Identifier: Apache-2.0
"""
The spec of a kernel: config, target, name, key and source.

The key is the digest of a document with everything on which the kernel's bytes depend. It never
contains sizes, paths, times, device names, user names, or versions of Python or torch. The document
is stored beside the artifact, so that a miss can be explained field by field.
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from jitgen.cache.entry import EDITED
from jitgen.codegen.parameters import derived, rendering, template_of
from jitgen.compile import toolchain
from jitgen.config import Arch, Config
from jitgen.config.plugins import OPERATIONS, TARGETS
from jitgen.settings import settings
from jitgen.support.documents import canonical_json
from jitgen.support.frozen import frozen
from jitgen.targets.legality import check
from jitgen.templates import digest as template_digest

if TYPE_CHECKING:
    from jitgen.runtime.override import Override

    Wanted: TypeAlias = Config | Override
    """A config, or an edited kernel."""

SCHEMA = 2
"""
Version of the key document. 2: host parts are compiled for a named CPU level, not for the CPU that
compiled them.
"""


def document(config: Config, arch: Arch, text: str = "") -> dict[str, object]:
    """
    Return the key document of `config` on `arch`: only JSON values, in no particular order.

    A config that the target refuses has no derived numbers, and is never compiled. For an edited
    source, the digest of its `text` replaces the inputs of the rendering.
    """
    document = {
        "schema": SCHEMA,
        "config": config.to_json(),
        "arch": str(arch),
        **(_rendered(config, arch) if not text else {EDITED: sha256(text)}),
        "toolchain": dict(toolchain.versions()),
        "options": list(toolchain.options(arch)),
        "host": toolchain.host(arch),
    }
    plugins = {
        kind.package: origin
        for kind, name in ((TARGETS, arch), (OPERATIONS, config.op))
        if (origin := kind.origin(name)) is not None
    }
    return document | {"plugins": plugins} if plugins else document


def _rendered(config: Config, arch: Arch) -> dict[str, object]:
    """Return the inputs of the rendering, besides the config."""
    return {
        "derived": derived(config, arch) if check(config, arch) else None,
        "templates": template_digest(template_of(config, arch)),
        "rendering": rendering(),
    }


def sha256(text: str) -> str:
    """Return the SHA-256 of a source, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest(key_document: dict[str, object]) -> str:
    """Return the SHA-256 of the canonical JSON of `key_document`, in hexadecimal."""
    return hashlib.sha256(canonical_json(key_document).encode("ascii")).hexdigest()


@lru_cache(maxsize=4096)
def key(config: Config, arch: Arch, text: str = "") -> str:
    """Return the key under which the artifact of `config` for `arch` is stored; see `document`."""
    return digest(document(config, arch, text))


@frozen
class KernelSpec:
    """
    One kernel of one target.

    Attributes:
        config: Its config.
        arch: The target.
        name: Its name.
        key: Digest of its key document.
        text: Its source, if it was edited; empty: the templates render it.
    """

    config: Config
    arch: Arch
    name: str
    key: str
    text: str = field(default="", repr=False)

    @property
    def is_edited(self) -> bool:
        """Whether the kernel's source was edited."""
        return bool(self.text)

    @property
    def derived(self) -> dict[str, object]:
        """Parameters of the kernel's template besides the config."""
        return derived(self.config, self.arch)

    @property
    def document(self) -> dict[str, object]:
        """Key document of the kernel."""
        return document(self.config, self.arch, self.text)


def spec_of(config: Config, arch: Arch, text: str = "") -> KernelSpec:
    """
    Return the spec of `config` on `arch`, with the edited source `text` if there is one.

    Raises:
        UnsupportedConfig: `arch` cannot run it.
        ToolchainError: The compiler's versions, which the key holds, are not known here.
    """
    digest_of = key(config, arch, text) if text else key(config, arch)
    return KernelSpec(config=config, arch=arch, name=config.name(arch), key=digest_of, text=text)


def plain(wanted: Wanted) -> Config:
    """Return `wanted` if it is a config, or the config of an edited kernel."""
    return wanted if isinstance(wanted, Config) else wanted.config


def serving(wanted: Wanted, arch: Arch) -> KernelSpec:
    """
    Return the spec that this program uses for `wanted` on `arch`: that of an edited kernel, if
    `wanted` is one or JITGEN_OVERRIDE has one for the config.

    Raises:
        OverrideError: A file of JITGEN_OVERRIDE cannot be used.
        SettingError: The folder of JITGEN_OVERRIDE cannot be used.
        UnsupportedConfig: `arch` cannot run it.
        ToolchainError: The compiler's versions, which the key holds, are not known here.
    """
    if isinstance(wanted, Config) and settings.override is None:
        return spec_of(wanted, arch)
    from jitgen.runtime import override

    edited = override.found(wanted, arch)
    return spec_of(plain(wanted), arch) if edited is None else edited.spec
