# SPDX-License-Identifier: Apache-2.0
"""
Special registers: where a thread is, and what time it is.

PTX ISA, section "Special Registers". For clocks see `machine.timeline`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers
from jitgen.emulator.machine.fragment import WARP, Fragment

Value = NDArray[np.integer] | int
"""A special register: an element for each thread, or a number that all share."""

_AXES = "xyz"

_RESERVED_BYTES = 1024
"""Shared memory below the first variable, which the system keeps."""


def _thread_index(f: Fragment, axis: int) -> NDArray[np.int64]:
    x, y, _ = f.machine.launch.block
    return (f.lanes % x, f.lanes // x % y, f.lanes // (x * y))[axis]


def _linear(index: tuple[int, ...], size: tuple[int, ...]) -> int:
    return index[0] + size[0] * (index[1] + size[1] * index[2])


def _clock(f: Fragment) -> int:
    return f.machine.timeline.read()


def _lane_mask(
    includes: np.ufunc,
) -> Callable[[Fragment], Integers]:
    """
    Return a function that returns, for each thread, the mask of the lanes that `includes` selects.
    """
    lanes = np.arange(WARP)
    bits = np.left_shift(np.uint64(1), lanes.astype(np.uint64))
    masks = (includes(lanes[None, :], lanes[:, None]) * bits).sum(axis=1)
    return lambda f: masks[f.threads.lane_ids]


def _along(
    function: Callable[[Fragment, int], Value], name: str
) -> dict[str, Callable[[Fragment], Value]]:
    """Return the functions that give the registers name.x, name.y and name.z."""
    return {f"{name}.{letter}": _on_axis(function, axis) for axis, letter in enumerate(_AXES)}


def _on_axis(function: Callable[[Fragment, int], Value], axis: int) -> Callable[[Fragment], Value]:
    return lambda f: function(f, axis)


_NARROW: dict[str, Callable[[Fragment], Value]] = {
    **_along(_thread_index, "%tid"),
    **_along(lambda f, axis: f.machine.launch.block[axis], "%ntid"),
    **_along(lambda f, axis: f.cta.index[axis], "%ctaid"),
    **_along(lambda f, axis: f.machine.launch.grid[axis], "%nctaid"),
    **_along(lambda f, axis: f.cta.index[axis] % f.machine.launch.cluster[axis], "%cluster_ctaid"),
    **_along(lambda f, axis: f.machine.launch.cluster[axis], "%cluster_nctaid"),
    **_along(lambda f, axis: f.cta.index[axis] // f.machine.launch.cluster[axis], "%clusterid"),
    **_along(
        lambda f, axis: -(-f.machine.launch.grid[axis] // f.machine.launch.cluster[axis]),
        "%nclusterid",
    ),
    "%laneid": lambda f: f.threads.lane_ids,
    "%warpid": lambda f: f.lanes // WARP,
    "%nwarpid": lambda f: f.cta.num_warps,
    "%cluster_ctarank": lambda f: f.cta.rank,
    "%cluster_nctarank": lambda f: f.machine.launch.cluster_size,
    "%is_explicit_cluster": lambda f: f.machine.launch.cluster_size > 1,
    "%smid": lambda f: _linear(f.cta.index, f.machine.launch.grid) % f.machine.num_sms,
    "%nsmid": lambda f: f.machine.num_sms,
    "%gridid": lambda _: 1,
    "%lanemask_eq": _lane_mask(np.equal),
    "%lanemask_lt": _lane_mask(np.less),
    "%lanemask_le": _lane_mask(np.less_equal),
    "%lanemask_gt": _lane_mask(np.greater),
    "%lanemask_ge": _lane_mask(np.greater_equal),
    "%dynamic_smem_size": lambda f: f.machine.launch.shared_bytes,
    "%total_smem_size": lambda f: f.machine.shared_end - _RESERVED_BYTES,
    "%aggr_smem_size": lambda f: f.machine.shared_end,
    "%clock": lambda f: _clock(f) & 0xFFFFFFFF,
    "%clock_hi": lambda f: _clock(f) >> 32,
    "%globaltimer_lo": lambda f: _clock(f) & 0xFFFFFFFF,
    "%globaltimer_hi": lambda f: _clock(f) >> 32,
}
"""Registers of 32 bits."""

_WIDE: dict[str, Callable[[Fragment], Value]] = {"%clock64": _clock, "%globaltimer": _clock}
"""Registers of 64 bits."""

NAMES = frozenset(_NARROW) | frozenset(_WIDE)
"""Names of all known special registers."""


def is_wide(name: str) -> bool:
    """Return whether a special register has 64 bits; the others have 32."""
    return name in _WIDE


def special(f: Fragment, at: int, name: str) -> Integers:
    """Return a special register for each thread: uint64 [n] if it is wide, else uint32 [n]."""
    if name in _WIDE:
        return np.full(f.n, _WIDE[name](f), np.uint64)
    return f.spread(np.asarray(_NARROW[name](f), np.int64)).astype(np.uint32)
