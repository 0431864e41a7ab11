# SPDX-License-Identifier: Apache-2.0
"""
JITGEN_ON_MISS=fallback: a call runs a compiled neighbour now, and the chosen kernel later.

Every candidate of a problem computes it rightly, and the best compiled one is rarely far from the
chosen one. So it serves at once, while a worker process compiles the choice; the session, which
remembers the neighbour, is told when that has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgen.config import Arch, Config
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.loader import KernelLoader, is_capturing
from jitgen.runtime.spec import serving


def serve(loader: KernelLoader, chosen: Config, neighbours: Iterable[Config], arch: Arch) -> Kernel:
    """
    Return the kernel of `chosen` if it is compiled, else that of the first neighbour that is.

    In the latter case `chosen` is compiled in the background, unless the session is frozen. Where
    no neighbour is compiled either, this compiles `chosen` and the caller waits, with a warning.

    Args:
        loader: Where kernels come from.
        chosen: What the selector wants.
        neighbours: Other configs that compute the same, best first.
        arch: The target.

    Raises:
        KernelMiss: Nothing is compiled, and the session is frozen.
        CaptureMiss: Nothing is loaded, and a CUDA graph is being captured.
        CompileError: Nothing is compiled, and `chosen` cannot be.
    """
    loader.note_wanted(chosen, arch)
    kernel = loader.find(chosen, arch)
    if kernel is not None:
        return kernel
    name = chosen.name(arch)
    for config in neighbours:
        kernel = loader.find(config, arch)
        if kernel is None:
            continue
        events.emit(
            Event(
                kind=EventKind.FALLBACK,
                kernel=name,
                key=serving(chosen, arch).key,
                detail=kernel.name,
            )
        )
        if not loader.is_frozen:
            loader.background.want(chosen, arch)
        return kernel
    if not loader.is_frozen and not is_capturing(arch):
        warn_once(
            f"fallback {name}",
            "nothing that could stand in for %s is compiled, so a call waits for the compiler; "
            "prewarm it with: jitgen prewarm --config %s",
            name,
            name,
        )
    return loader.get(chosen, arch)
