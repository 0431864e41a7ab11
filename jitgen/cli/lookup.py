# SPDX-License-Identifier: Apache-2.0
"""The argument CONFIG-or-KEY of commands: finds the kernel for a name, a key or a file."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING

from jitgen.config import Arch, Config
from jitgen.errors import ConfigError
from jitgen.runtime import spec as keys
from jitgen.runtime.override import override
from jitgen.runtime.spec import KernelSpec
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

if TYPE_CHECKING:
    from jitgen.cache import Damage, Store

MIN_PREFIX = 4
"""Least number of digits of a key that must be given."""

_HEX = re.compile(r"[0-9a-f]{1,64}")


@frozen
class KernelId:
    """Name, target and key of a kernel: the first fields of JSON documents about it."""

    name: v.Name
    arch: v.ArchName
    key: v.Key


@frozen
class Named:
    """
    A kernel that the user named.

    Attributes:
        config: Its config.
        arch: Its target.
        key: The given key, or the key of the config with the installed toolchain.
        is_key: Whether a key was given: then exactly that entry is meant, no matter which toolchain
            built it.
        text: The source if a file was given; otherwise empty.
        title: The text that the user typed.
    """

    config: Config
    arch: Arch
    key: str
    is_key: bool
    text: str = field(default="", repr=False)
    title: str = ""

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.config.name(self.arch)

    @property
    def spec(self) -> KernelSpec:
        """The kernel's spec on this machine; its key may differ from the given one."""
        return keys.spec_of(self.config, self.arch, self.text)

    @property
    def id(self) -> KernelId:
        """Name, target and key of this kernel: the first fields of JSON documents about it."""
        return KernelId(name=self.name, arch=self.arch, key=self.key)


class Nameless(ConfigError):
    """
    A key names a damaged entry whose kernel is unknown.

    Attributes:
        key: Its key.
        damages: What was found under this key, in its place or the quarantine; never empty.
    """

    def __init__(self, key: str, damages: tuple[Damage, ...]) -> None:
        super().__init__(
            f"entry {key[:12]} is damaged ({damages[0].reason}), and nothing tells which kernel it "
            f"was; see: jitgen cache explain {key[:12]}"
        )
        self.key = key
        self.damages = damages


def find(text: str, store: Store, *, with_files: bool = False) -> Named:
    """
    Return the kernel that `text` names: a kernel name, a key, or the first digits of one.

    Args:
        text: Text that the user typed.
        store: Store in which keys are looked up.
        with_files: Whether it may also be the path of an edited kernel, ``FILE.py``.

    Raises:
        ConfigError: `text` is not a name, file or key, or its digits fit no entry or several.
        OverrideError: A file cannot be used.
        Nameless: The digits fit an entry whose record is lost.
    """
    if with_files and text.endswith(".py"):
        edited = override(text)
        return Named(
            config=edited.config,
            arch=edited.arch,
            key=edited.spec.key,
            is_key=False,
            text=edited.text,
            title=text,
        )
    if not _HEX.fullmatch(text):
        config, arch = Config.parse(text)
        key = keys.key(config, arch)
        return Named(config=config, arch=arch, key=key, is_key=False, title=text)
    found = find_key(text, store)
    meta = store.meta(found)
    name = "" if meta is None else meta.name
    if not name and (damages := store.damages(found)):
        name = next((damage.name for damage in damages if damage.name), "")
        if not name:
            raise Nameless(found, tuple(damages))
    if not name:
        raise ConfigError(
            f"{found[:12]} remembers a failure only, so it cannot be shown; "
            "see: jitgen cache ls --failures"
        )
    config, arch = Config.parse(name)
    return Named(config=config, arch=arch, key=found, is_key=True, title=text)


def find_key(text: str, store: Store) -> str:
    """
    Return the key of the entry, or of the remembered failure, that `text` names; if there is
    neither, of something in the quarantine.

    Raises:
        ConfigError: It names no key, or several.
    """
    if not _HEX.fullmatch(text):
        config, arch = Config.parse(text)
        return keys.key(config, arch)
    if len(text) < MIN_PREFIX:
        raise ConfigError(f"key {shown(text)} is too short: give at least {MIN_PREFIX} digits")
    failed = {key for key in store.index.failures() if key.startswith(text)}
    found = sorted({*store.keys(text), *failed})
    if not found:
        set_aside = {damage.key for damage in store.quarantined()}
        found = sorted(key for key in set_aside if key.startswith(text))
    if not found:
        raise ConfigError(f"no entry in {store.root} has a key that starts with {text}")
    if len(found) > 1:
        examples = ", ".join(key[:12] for key in found[:3])
        raise ConfigError(f"{len(found)} keys start with {text}: {examples}; give more digits")
    return found[0]


def parse_configs(names: tuple[str, ...]) -> list[tuple[Config, Arch]]:
    """
    Return the configs and targets of kernel names, each once.

    Raises:
        ConfigError: One of them is not a kernel name.
        UnsupportedConfig: Its target cannot run one of them.
    """
    from jitgen.targets.legality import require

    found = []
    for name in dict.fromkeys(names):
        config, arch = Config.parse(name)
        require(config, arch)
        found.append((config, arch))
    return found
