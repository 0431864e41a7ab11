# SPDX-License-Identifier: Apache-2.0
"""
The error of a call whose kernel is missing: it names every place that was searched, and its answer.

The search itself is fast and collects no reasons. If it finds no kernel and compiling is not
allowed, the places are searched again to collect reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.errors import KernelMiss
from jitgen.runtime.override import Override, called

if TYPE_CHECKING:
    from jitgen.config import Arch
    from jitgen.runtime.spec import KernelSpec, Wanted
    from jitgen.runtime.tiers import Tiers


def miss(
    config: Wanted, arch: Arch, spec: KernelSpec, tiers: Tiers, elsewhere: str, why: str
) -> KernelMiss:
    """
    Return the error for a kernel that no place has.

    Args:
        config: The requested config.
        arch: The target.
        spec: The kernel that was searched.
        tiers: The places that were asked.
        elsewhere: The answers of remote caches and services; empty if there are none.
        why: Why the kernel may not be compiled.
    """
    said = tiers.absences(spec)
    places = [*(f"{each.place}: {each.reason}" for each in said), *filter(None, [elsewhere])]
    remedy = f"prewarm it with: jitgen prewarm --config {spec.name}"
    if isinstance(config, Override):
        remedy = f"compile it with: jitgen run {config.path}"
    return KernelMiss(
        spec.name,
        f"no compiled kernel {called(config, arch)} in any place ({'; '.join(places)}), and "
        f"compiling is off ({why}); {remedy}",
        is_passing=any(each.is_passing for each in said),
    )
