# SPDX-License-Identifier: Apache-2.0
"""
Cluster launch control: a running cluster takes over the work of one that has not started.

PTX ISA, sections "clusterlaunchcontrol.try_cancel" and "clusterlaunchcontrol.query_cancel". The
answer is opaque in PTX. Here its low half holds the first CTA's index, x in bits 0-31, y in 32-47,
z in 48-63, and its high half whether there was a cluster to cancel.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.isa.bulk_transfer import Mask, Target, check_parts, issues
from jitgen.emulator.machine.cta import OFFSET_MASK
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.parse import wide_halves
from jitgen.emulator.program.table import Unsupported, emits

ANSWER_BYTES = 16

_FIELDS = {"x": (0, 0xFFFFFFFF), "y": (32, 0xFFFF), "z": (48, 0xFFFF)}
"""First bit of each index in the low half of the answer, and a mask of its bits."""

_PARTS = (
    "clusterlaunchcontrol try_cancel async shared::cta mbarrier::complete_tx::bytes "
    "multicast::cluster::all b128"
)


@emits("clusterlaunchcontrol.try_cancel")
def try_cancel(builder: Builder, instruction: Instruction) -> None:
    """Translate ``clusterlaunchcontrol.try_cancel.async... [answer], [mbarrier]``."""
    check_parts(instruction, _PARTS)
    answer, barrier = (builder.address(operand) for operand in instruction.operands)
    is_multicast = str(instruction.has("multicast::cluster::all"))
    builder.do(builder.call(cancel, builder.mask(instruction), answer, barrier, is_multicast))


@emits("clusterlaunchcontrol.query_cancel.is_canceled")
def is_canceled(builder: Builder, instruction: Instruction) -> None:
    """Translate ``clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer``."""
    result, answer = instruction.operands
    high = builder.value(wide_halves(answer)[1], "b64")
    builder.define(result, f"({high} != 0)", "pred", instruction)


@emits("clusterlaunchcontrol.query_cancel")
def first_index(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``get_first_ctaid::x.b32.b128 x, answer``, or ``get_first_ctaid.v4.b32.b128 {x, y, z,
    _}``.
    """
    results, answer = instruction.operands
    part = instruction.parts[2]
    names = builder.names(results)
    axes = (
        ["x", "y", "z"] if part == "get_first_ctaid" else [part.removeprefix("get_first_ctaid::")]
    )
    if not set(axes) <= _FIELDS.keys() or len(names) < len(axes):
        raise Unsupported(f"modifier .{part}")
    low = builder.value(wide_halves(answer)[0], "b64")
    function = builder.constant(index_along, "index_along")
    for name, axis in zip(names, axes, strict=False):  # the fourth of a vector is undefined
        builder.define(name, f"{function}({low}, {axis!r})", "b32", instruction)


def index_along(answer: NDArray[np.uint64], axis: str) -> NDArray[np.uint32]:
    """Return the first CTA's index along an axis, from the low halves [n] of answers."""
    shift, mask = _FIELDS[axis]
    index: NDArray[np.uint64] = answer >> np.uint64(shift) & np.uint64(mask)
    return index.astype(np.uint32)


def cancel(
    f: Fragment, at: int, mask: Mask, answers: PerThread, barriers: PerThread, is_multicast: bool
) -> None:
    """
    Take a cluster that has not started and write its index, or that there is none.

    Args:
        f: The fragment.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        answers: Shared addresses of 16 bytes.
        barriers: Addresses of mbarriers that count these bytes.
        is_multicast: Write to the same offset in every CTA of the cluster, and signal each one's
            mbarrier.
    """
    for issue in issues(f, at, mask):
        answer, barrier = issue.of(answers), issue.of(barriers)
        issue.check_aligned("answer address", answer, ANSWER_BYTES)
        everyone = (1 << len(f.cluster.ctas)) - 1 if is_multicast else None
        targets = issue.targets(answer, barrier, everyone)
        offset = answer & OFFSET_MASK
        where = slice(offset, offset + ANSWER_BYTES)
        for target in targets:
            epoch = target.barrier.phase + 1
            target.cta.shared.note_async_write(
                f, at, where, target.barrier.agent, epoch, issue.agent
            )

        def act(targets: list[Target] = targets, where: slice = where) -> None:
            data = _answer(f.machine.take_cluster())
            for target in targets:
                target.cta.shared.put(where, data)
                target.barrier.complete(f, at, ANSWER_BYTES, target.by)

        f.machine.counts["launch_cancels"] += 1
        f.cluster.queues.issue("load", act)


def _answer(index: tuple[int, int, int] | None) -> NDArray[np.uint8]:
    """Return the 16 bytes of an answer: the cancelled cluster's index, or that there was none."""
    x, y, z = index or (0, 0, 0)
    return np.frombuffer(struct.pack("<IHHQ", x, y, z, index is not None), np.uint8)
