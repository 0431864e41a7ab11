# SPDX-License-Identifier: Apache-2.0
"""
The findings of ``jitgen doctor`` about the machine: installed versions, and what they make
possible.

There are three kinds of machines: those that only compile, for any target; those that only load and
run kernels compiled elsewhere; and those that do both. None of these is broken.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator

from jitgen._version import __version__
from jitgen.cli.findings import Finding, Health, about
from jitgen.compile import toolchain
from jitgen.compile.linker import driver
from jitgen.config import Arch
from jitgen.config.plugins import OPERATIONS, TARGETS
from jitgen.errors import ConfigError, ToolchainError
from jitgen.settings import settings


def version_findings() -> Iterator[Finding]:
    """Yield the versions of jitgen, Python, the system and the packages that jitgen needs."""
    section = "versions"
    yield about(section, "jitgen", __version__)
    yield about(section, "python", platform.python_version())
    yield about(section, "system", platform.platform())
    for name in ("torch", toolchain.CALLS, "diskcache", "filelock"):
        found = toolchain.version(name)
        yield about(
            section,
            name,
            found or "not installed",
            Health.FAIL,
            "install it: pip install jitgen",
            when=not found,
        )
    for name in ("jinja2", toolchain.COMPILER, *toolchain.FLAVOURS.values()):
        found = toolchain.version(name)  # `ability_findings` says what each is needed for
        yield about(section, name, found or "not installed")


def toolchain_findings() -> Iterator[Finding]:
    """Yield the tools that compile, link, load and disassemble kernels."""
    section = "toolchain"
    yield _release(section)
    yield _generator(section)
    yield _runtime_library(section)
    linker = driver()
    wants_linker = not linker and not toolchain.why_not_compiling()
    yield about(
        section,
        "linker",
        linker or "not found",
        Health.WARN,
        "kernels compiled here are not kept: install gcc",
        when=wants_linker,
    )
    yield about(section, "processor", toolchain.cpu_level())
    for package, what in (
        ("nvidia-cuda-cuobjdump", "cuobjdump"),
        ("nvidia-cuda-nvdisasm", "nvdisasm"),
    ):
        value = toolchain.version(package) or shutil.which(what)
        advice = "" if value else "for SASS and registers: pip install 'jitgen[inspect]'"
        health = Health.NOTE if advice else Health.OK
        value = value or "not installed"
        yield about(section, what, value, health, advice)


def ability_findings() -> Iterator[Finding]:
    """Yield whether this machine can compile, load and run kernels, and why not."""
    section = "this machine can"
    reason = toolchain.why_not_compiling()
    yield about(
        section,
        "compile",
        f"no: {reason}" if reason else "yes",
        Health.NOTE,
        "kernels come from caches that were filled elsewhere; with JITGEN_ON_MISS=error a "
        "miss says so at once",
        when=reason,
    )
    reason = _why_not_loading()
    yield about(
        section,
        "load",
        f"no: {reason}" if reason else "yes",
        Health.FAIL,
        "for a machine that only runs kernels, see docs/install.md",
        when=reason,
    )
    for arch in _usable():
        obstacle = reason or _why_not_running(arch)
        yield about(
            section,
            f"run {arch}",
            f"no: {obstacle}" if obstacle else "yes",
            Health.NOTE,
            when=obstacle,
        )


def plugin_findings() -> Iterator[Finding]:
    """Yield the targets and operations of each distribution in JITGEN_PLUGINS."""
    for name in settings.plugins:
        value, trouble = "nothing", ""
        try:
            brought = [
                f"{kind.word} {each}" for kind in (TARGETS, OPERATIONS) for each in kind.of(name)
            ]
            value = ", ".join(brought) or value
        except ConfigError as error:
            trouble = str(error)
        yield about(
            "plugins",
            name,
            trouble or value,
            Health.FAIL,
            "commands that ask for it fail: mend it, or leave it out of JITGEN_PLUGINS",
            when=trouble,
        )


def _usable() -> list[Arch]:
    """Return the targets that can be loaded; `plugin_findings` reports the others."""
    names = TARGETS.names() if all(f.health is Health.OK for f in plugin_findings()) else ()
    return [Arch(name) for name in names or TARGETS.built_in()]


def _release(section: str) -> Finding:
    """Report the compiler version that keys made on this machine contain."""
    try:
        versions = toolchain.versions()
    except ToolchainError as error:
        return about(section, "release", str(error), Health.FAIL)
    names = (toolchain.COMPILER, toolchain.CALLS)
    value = ", ".join(f"{name} {versions[name]}" for name in names)
    if toolchain.version(toolchain.COMPILER) is None:
        value += f" (told by {toolchain.FLAVOURS[toolchain.flavour() or 12]})"
    return about(section, "release", value)


def _generator(section: str) -> Finding:
    """
    Report which package generates code, that of CUDA 12 or of 13, and warn if the driver does not
    support its CUDA. Keys contain it: entries of the other package are misses.
    """
    used, found, supported = toolchain.flavour(), toolchain.flavours(), toolchain.driver_cuda()
    if used is None:
        return about(section, "flavour", "none")
    value = f"cu{used}"
    if len(found) > 1:
        why = "without a driver the newest" if supported is None else "the newest for this driver"
        value += f", {why} of {' and '.join(f'cu{cuda}' for cuda in found)}"
    is_ahead = supported is not None and supported < used
    return about(
        section,
        "flavour",
        value,
        Health.WARN,
        f"the driver supports CUDA {supported} only",
        when=is_ahead,
    )


def _runtime_library(section: str) -> Finding:
    from jitgen.runtime.kernel import runtime_library

    found = runtime_library()
    return about(
        section,
        "runtime library",
        str(found) if found else "not found",
        Health.FAIL,
        "no kernel can be loaded: reinstall nvidia-cutlass-dsl",
        when=not found,
    )


def _why_not_loading() -> str:
    """Return why no kernel can be loaded here; empty if kernels can be."""
    from jitgen.runtime.kernel import load_runtime_library

    try:
        toolchain.versions()
        load_runtime_library()
        import tvm_ffi  # noqa: F401  # it loads kernels and calls them
    except (ToolchainError, ImportError) as error:
        return str(error)
    return ""


def _why_not_running(arch: Arch) -> str:
    """Return why loaded kernels for `arch` cannot run on this machine; empty if they can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if not arch.is_gpu:
        return ""
    if not torch.cuda.is_available():
        return "there is no GPU that torch can use"
    devices = range(torch.cuda.device_count())
    if any(Arch.of_capability(*torch.cuda.get_device_capability(i)) is arch for i in devices):
        return ""
    return "no GPU here is one"
