# SPDX-License-Identifier: Apache-2.0
"""
tcgen05.mma: products of matrices into tensor memory, of one CTA or of a pair; emitters and issue.

A pair of CTAs multiplies as one: each has half of the rows of A and D, and half of the columns of
B, which both use. One thread issues for both, and addresses and descriptors hold in both.

PTX ISA, section "TensorCore 5th Generation Instructions: tcgen05.mma". The computation of an
instruction is in `tcgen05_product`, the places of its operands in `tcgen05_operands`.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Vector
from jitgen.emulator.formats.instruction_descriptor import KINDS
from jitgen.emulator.isa.tcgen05_group import num_ctas
from jitgen.emulator.isa.tcgen05_operands import Form, Operands
from jitgen.emulator.isa.tcgen05_product import plan
from jitgen.emulator.machine.collectors import DISCARD
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

_MODIFIERS = re.compile(
    r"tcgen05|mma|cta_group::[12]|kind::\w+|block_scale|scale_vec::[124]X|block(16|32)"
    r"|collector::a::(fill|use|lastuse|discard)"
)
_SCALES = re.compile(r"scale_vec::\dX|block\d+")

_COLLECTOR = "collector::a::"

_SHIFTED, _MAX_SHIFT = frozenset({"f16", "tf32"}), 15
"""Kinds that can scale the old accumulator, and by how many bits."""

_ADDRESSES = 2
"""Scale factors: the operands [scale_a], [scale_b]."""


@emits("tcgen05.mma")
def mma(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``tcgen05.mma.cta_group::1.kind::f16 [d], a, b, idesc, {lanes}, enable-input-d,
    scale``.
    """
    unknown = [part for part in instruction.parts if not _MODIFIERS.fullmatch(part)]
    if unknown:
        raise Unsupported(f"modifier .{unknown[0]}")
    d, a, b, idesc, *rest = instruction.operands
    form, rest = _form(builder, instruction, rest)
    scales = [builder.address(operand) for operand in rest[:_ADDRESSES]] if form.scales else []
    rest = rest[len(scales) :]
    disabled = builder.values(rest.pop(0), "b32") if rest[0].startswith("{") else []
    if len(disabled) not in {0, 4 * form.ctas} or (disabled and form.scales):
        raise Unsupported(f"a vector of {len(disabled)} lane masks")
    arguments = [
        builder.address(d),
        builder.address(a) if form.is_a_tensor else builder.value(a, "b64"),
        builder.value(b, "b64"),
        builder.value(idesc, "b32"),
        builder.value(rest[0], "pred"),
        *(scales or ["0", "0"]),
        *disabled,
    ]
    mask, named = builder.mask(instruction), builder.constant(form, "form")
    builder.do(builder.call(multiply, mask, named, f"({', '.join(arguments)})"))


def _form(builder: Builder, instruction: Instruction, rest: list[str]) -> tuple[Form, list[str]]:
    """
    Return the parts of the opcode, and the operands after the instruction descriptor without the
    number that scales the accumulator.
    """
    name = _only(instruction, "kind::").removeprefix("kind::")
    if name not in KINDS:
        raise Unsupported(f"kind::{name}")
    has_scales = bool(KINDS[name].scales)
    if has_scales != instruction.has("block_scale"):
        raise Unsupported(f"kind::{name} and .block_scale")
    shift = 0
    if not has_scales and rest[-1].isdigit():
        shift = int(rest[-1])
        rest = rest[:-1]
        if name not in _SHIFTED or shift > _MAX_SHIFT:
            raise Unsupported(f"scale-input-d {shift} of kind::{name}")
    form = Form(
        kind=name,
        ctas=num_ctas(builder, instruction),
        scales=_scales_of_row(instruction, name) if has_scales else 0,
        is_a_tensor=instruction.operands[1].startswith("["),
        input_shift=shift,
        collector=_collector(instruction),
    )
    return form, rest


def _collector(instruction: Instruction) -> str:
    """Return the word for what an instruction does with the collector buffer, as ``fill``."""
    found = (part for part in instruction.parts if part.startswith(_COLLECTOR))
    return next(found, _COLLECTOR + DISCARD).removeprefix(_COLLECTOR)


def _only(instruction: Instruction, prefix: str) -> str:
    """Return the modifier that begins with `prefix`."""
    for part in instruction.parts:
        if part.startswith(prefix):
            return part
    raise Unsupported(f"no .{prefix}")


def _scales_of_row(instruction: Instruction, name: str) -> int:
    """Return how many scale factors a row of the operands has."""
    sizes = [part for part in instruction.parts if _SCALES.fullmatch(part)] or [""]
    known = KINDS[name].scales or {}
    if sizes[0] not in known:
        raise Unsupported(f"scale vectors {sizes[0] or 'of no size'} of kind::{name}")
    return known[sizes[0]]


def multiply(f: Fragment, at: int, mask: Mask, form: Form, operands: Vector) -> None:
    """
    Issue the instruction for each thread under the mask.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        form: The parts of its opcode.
        operands: The fields of `Operands`, one element or [n] each, and the lane masks.
    """
    for thread in f.selected(mask).tolist():
        d, a, b, descriptor, is_added, scale_a, scale_b, *disabled = (
            int(operand[thread] if isinstance(operand, np.ndarray) else operand)
            for operand in operands
        )
        given = Operands(d, a, b, descriptor, is_added, scale_a, scale_b, tuple(disabled))
        f.cluster.queues.issue("matrix", plan(f, at, thread, form, given))
        f.machine.counts["matrix_instructions"] += 1
