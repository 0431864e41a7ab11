# SPDX-License-Identifier: Apache-2.0
"""Finds the dynamic shared memory of a kernel's launch by its host part; no kernel is run."""

from __future__ import annotations

from jitgen.cache import Entry
from jitgen.codegen.render import Source
from jitgen.emulator import dynamic_shared_bytes as of_call
from jitgen.verify.artifacts import linked
from jitgen.verify.host import HOST
from jitgen.verify.verification import samples_of


def dynamic_shared_bytes(entry: Entry, source: Source) -> int:
    """
    Return the most bytes of dynamic shared memory of a CTA in the launches of one small call.

    Raises:
        EmulationError: The library was not linked, or cannot be loaded.
        UnsupportedPtx: Its host part asks for properties of the device that are unknown.
        ToolchainError: There is no C compiler to make the stub runtime.
        ConfigError: Kernels of its operation cannot be verified.
    """
    config, arch = source.config, source.arch
    samples = samples_of(config)
    sizes = samples.Sizes.of(config, arch)[0]
    call = samples.make(config, sizes, is_exact=True)
    return of_call(
        linked(entry.meta.library, entry.library),
        entry.meta.symbol,
        (*call.tensors, sizes.num_sms),
        arch=str(arch),
        num_sms=sizes.num_sms,
        host=HOST,
    )
