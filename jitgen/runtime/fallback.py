# SPDX-License-Identifier: Apache-2.0
"""
JITGEN_ON_MISS=fallback: a call uses a compiled neighbour of the chosen kernel until that is
compiled.

Every candidate of a problem computes the right result, and the best compiled one is rarely much
slower than the chosen one. So it is used at once, while a worker process compiles the chosen
kernel. When that is ready, the session drops the cached launches of the neighbour.
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
    Return the kernel of `chosen` if it is compiled, otherwise that of the first compiled neighbour.

    In the latter case `chosen` is compiled in the background, unless the session is frozen. If no
    neighbour is compiled either, this function compiles `chosen`, and the caller waits; there is a
    warning.

    Args:
        loader: The loader of kernels.
        chosen: The choice of the selector.
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
