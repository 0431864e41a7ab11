# SPDX-License-Identifier: Apache-2.0
"""
wgmma: asynchronous matrix products of a warpgroup.

What an instruction computes is in `wgmma_product`, what is in flight in `machine.warpgroup`. Here
are the emitters, and what happens between issue and wait. All warps of a fragment are multiplied at
once where they name the same B.

PTX ISA, section "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Numbers, PerThread
from jitgen.emulator.formats import fragments, numbers
from jitgen.emulator.isa import wgmma_product
from jitgen.emulator.isa.wgmma_product import Product
from jitgen.emulator.machine import operands
from jitgen.emulator.machine.fragment import Fragment, Split, Wait, agree
from jitgen.emulator.machine.in_flight import note_fence
from jitgen.emulator.machine.operands import Place, Read
from jitgen.emulator.machine.unwritten import check_sums
from jitgen.emulator.machine.warpgroup import WARPS, Member, Share, shares_of, warpgroup
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Matrix = NDArray[np.float32]


# --- emitters ------------------------------------------------------------------------------------


@emits("wgmma.mma_async", whole_warp=True)
def mma_async(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {d}, a, b, scale-d, 1, 1, 0,
    0``.
    """
    _refuse_guard(instruction)
    target, a, b, is_added = instruction.operands[:4]
    names, a_names = builder.names(target), builder.names(a)
    product = wgmma_product.parse(instruction, _rows(builder, names))
    added = builder.value(is_added, "pred")
    arguments = [builder.constant(product, "product"), builder.value(b, "b64"), added]
    function: Callable[..., None] = multiply
    if a.startswith("{"):
        function = multiply_registers
        builder.flush(a_names)
        builder.accesses.reads.update(a_names)
        arguments.append(builder.constant(_rows(builder, a_names), "registers_a"))
    else:
        arguments.append(builder.value(a, "b64"))
    builder.flush(names)
    if is_added != "0":
        _check_sums(builder, instruction, names, added)
    builder.do(builder.call(function, *arguments))
    builder.forget(names)


def _check_sums(
    builder: Builder, instruction: Instruction, names: list[str], is_added: str
) -> None:
    """
    Add a check that the accumulators to which a product is added were written, if that is in doubt.
    """
    builder.accesses.sums.update(names)
    rows = builder.checks.sums(instruction.index)
    if rows:
        builder.do(builder.call(check_sums, is_added, repr(rows)))


@emits("wgmma.fence", whole_warp=True)
def fence(builder: Builder, instruction: Instruction) -> None:
    """Translate ``wgmma.fence.sync.aligned``."""
    _refuse_guard(instruction)
    builder.do(builder.call(fence_registers))


@emits("wgmma.commit_group", whole_warp=True)
def commit_group(builder: Builder, instruction: Instruction) -> None:
    """Translate ``wgmma.commit_group.sync.aligned``."""
    _refuse_guard(instruction)
    builder.do(builder.call(close_groups))


@emits("wgmma.wait_group", whole_warp=True, starts_block=True, is_wait=True)
def wait_group(builder: Builder, instruction: Instruction) -> None:
    """Translate ``wgmma.wait_group.sync.aligned N``."""
    _refuse_guard(instruction)
    keep = int(instruction.operands[0], 0)
    outcome = builder.temporary()
    builder.do(f"{outcome} = {builder.call(wait_for_groups, str(keep))}")
    builder.do(f"if {outcome} is not None: return {outcome}")


def _refuse_guard(instruction: Instruction) -> None:
    """Refuse a guard: four warps execute the instruction, so compilers branch around it."""
    if instruction.guard is not None:
        raise Unsupported("a guard")


def _rows(builder: Builder, names: list[str]) -> tuple[int, ...]:
    """Return the rows of the register file in which 32-bit registers lie."""
    found = [builder.register(name) for name in names]
    if any(kind != "r" for kind, _ in found):
        raise Unsupported("registers that do not have 32 bits")
    return tuple(row for _, row in found)


# --- mma_async -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """
    Warps of a fragment that multiply by the same B.

    Attributes:
        f: The fragment.
        at: Index of the instruction.
        product: The computed product.
        members: The warps, and what their warpgroups have in flight.
        b: The place of B.
        is_added: Whether the product is added to the accumulators.
    """

    f: Fragment
    at: int
    product: Product
    members: list[Member]
    b: Place
    is_added: bool


def multiply(
    f: Fragment, at: int, product: Product, b: PerThread, is_added: PerThread, a: PerThread
) -> None:
    """
    Multiply A by B, both in shared memory.

    Args:
        f: Whole warps.
        at: Index of the instruction.
        product: The computed product.
        b: Descriptor, uint64 or an array [n] in which all threads of a warpgroup have the same.
        is_added: Whether to add to the accumulators instead of replacing them: bool, likewise.
        a: Descriptor, likewise.

    Raises:
        MachineFault: A descriptor is not valid, or its operand out of bounds; threads disagree.
    """
    for part in _parts(f, at, product, b, is_added):
        places = [
            operands.find(f, at, int(_common(f, at, a, share)), product.a)
            for share, _ in part.members
        ]
        _plan_reads(part, places)
        rows = operands.rows_of_a(
            tuple(
                (place, share.first, share.stop)
                for place, (share, _) in zip(places, part.members, strict=True)
            )
        )
        _issue(part, partial(_take, part, rows, product.a_type))


def multiply_registers(
    f: Fragment, at: int, product: Product, b: PerThread, is_added: PerThread, a: tuple[int, ...]
) -> None:
    """Multiply A, which is in four registers of the file, by B; see `multiply`."""
    for part in _parts(f, at, product, b, is_added):
        _plan_reads(part, [None] * len(part.members))
        registers = [f.cta.r[list(a), share.lanes] for share, _ in part.members]
        for share, group in part.members:
            group.hold(f, at, share, list(a))
        rows = fragments.rows_of_a(np.concatenate(registers, axis=1))
        _issue(part, partial(numbers.elements, rows, product.a_type))


def _parts(
    f: Fragment, at: int, product: Product, b: PerThread, is_added: PerThread
) -> Iterator[_Part]:
    """
    Yield groups of warps whose products can be computed at once.

    Where products are deferred, warpgroups are apart, since each waits for its own.
    """
    members = _members(f, at)
    is_whole = agree(b) and agree(is_added) and not f.machine.mode.defers("matrix")
    for some in [members] if is_whole else [[member] for member in members]:
        share = some[0][0]
        place = operands.find(f, at, int(_common(f, at, b, share)), product.b)
        yield _Part(f, at, product, some, place, bool(_common(f, at, is_added, share)))


def _plan_reads(part: _Part, places: Sequence[Place | None]) -> None:
    """
    Plan to note the reads of B, and of A if it is in shared memory, when their group is closed.
    """
    for place, (share, group) in zip(places, part.members, strict=True):
        read = Read(part.at, place, part.b)
        for reads in group.reads[share.warps]:
            reads.append(read)


def _issue(part: _Part, left: Callable[[], Matrix]) -> None:
    """
    Multiply, either now or when a wait requires the result.

    Args:
        part: The warps, and the operand by which they multiply.
        left: Returns the rows of A [16 * warps, K].
    """
    f, at, product = part.f, part.at, part.product
    values = []
    for share, group in part.members:
        size = product.a.element_bytes
        matrix = group.begin(f, at, share, product.target, size, part.is_added)
        values.append(matrix[share.rows])
        f.machine.counts["matrix_instructions"] += share.first == 0  # once for four warps
    action = partial(_multiply, part, left, values)
    if f.machine.mode.defers("matrix"):
        share, group = part.members[0]
        group.deferred.setdefault(group.open_group(share), []).append(action)
    else:
        action()


def _multiply(part: _Part, left: Callable[[], Matrix], values: list[Numbers]) -> None:
    """Do the arithmetic; `values` are the accumulators [rows, columns] of each member."""
    right = _take(part, part.b.where, part.product.b_type)
    product = numbers.product(left(), right)
    start = 0
    for matrix in values:
        stop = start + len(matrix)
        part.product.add(matrix, product[start:stop], part.is_added)
        start = stop


def _take(part: _Part, where: NDArray[np.int64], name: str) -> Matrix:
    """Return elements of type `name` in shared memory."""
    return numbers.elements(part.f.cta.shared.take(part.f, part.at, where), name)


def _common(f: Fragment, at: int, values: PerThread, share: Share) -> np.integer:
    """Return the one value that the threads of a warpgroup have."""
    if not isinstance(values, np.ndarray):
        return values
    mine = values[share.columns]
    if not agree(mine):
        f.fault(at, "descriptor or scale-d differs between threads of a warpgroup")
    common: np.integer = mine[0]
    return common


# --- fence, commit_group, wait_group -------------------------------------------------------------


def fence_registers(f: Fragment, at: int) -> None:
    """
    Allow products that are issued from now on to use registers that other instructions used before.
    """
    for share, group in _members(f, at):
        group.fence(share)
    note_fence(f)
    f.cluster.clocks.representatives.meet(f.agents)


def close_groups(f: Fragment, at: int) -> None:
    """Close the groups that are open."""
    members = _members(f, at)
    operands.note_reads(f, members)
    for share, group in members:
        group.close(share)
        if share.num_warps < WARPS:
            f.cluster.events += 1  # others may wait for these


def wait_for_groups(f: Fragment, at: int, keep: int) -> Wait | Split | None:
    """
    Wait until all groups but the latest `keep` are complete.

    Returns:
        None, or what the block function is to return because warps are missing without which the
        products do not begin.
    """
    members = _members(f, at)
    late = [(share, group) for share, group in members if not group.is_issued(share, keep)]
    if late:
        return _wait_for_warps(f, at, keep, late)
    for share, group in members:
        group.complete(f, share, keep)
    f.cluster.clocks.representatives.meet(f.agents)
    return None


def _wait_for_warps(f: Fragment, at: int, keep: int, late: list[Member]) -> Wait | Split:
    """Return the wait of `late`, while other warps of `f` go on."""
    wait = Wait(
        at,
        is_over=lambda: all(group.is_issued(share, keep) for share, group in late),
        describe=lambda: "the other warps of the warpgroup, to issue their parts of a wgmma group",
    )
    is_late = np.zeros(f.n, np.bool_)
    for share, _ in late:
        is_late[share.columns] = True
    return wait if is_late.all() else [(~is_late, f.block), (is_late, wait)]


def _members(f: Fragment, at: int) -> list[Member]:
    """
    Return the warps of a fragment, by warpgroup.

    Raises:
        MachineFault: The CTA ends in the middle of a warpgroup.
    """
    shares = shares_of(f)
    if WARPS * (shares[-1].group + 1) > f.cta.num_warps:
        f.fault(at, f"{f.cta.num_warps} warps are not whole warpgroups of {WARPS}")
    return [(share, warpgroup(f.cta, share.group)) for share in shares]
