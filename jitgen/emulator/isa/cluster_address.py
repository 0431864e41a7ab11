# SPDX-License-Identifier: Apache-2.0
"""
Shared addresses of other CTAs of the cluster.

PTX ISA, sections "mapa" and "getctarank". A shared address holds the CTA's rank from bit 24 on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.isa.modifiers import apply, define
from jitgen.emulator.machine.cta import OFFSET_MASK, RANK_SHIFT
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import emits


@emits("mapa")
def mapa(builder: Builder, instruction: Instruction) -> None:
    """Translate ``mapa.shared::cluster.u32 d, address, rank``."""
    address_type = instruction.parts[-1]
    address = builder.value(instruction.operands[1], address_type)
    rank = builder.value(instruction.operands[2], "u32")
    define(builder, instruction, apply(builder, peer_address, address, rank), address_type)


def peer_address(address: PerThread, rank: PerThread) -> PerThread:
    """Return the address of the same variable in the CTA `rank`, of the address's dtype."""
    dtype = address.dtype.type
    return (address & dtype(OFFSET_MASK)) | (np.asarray(rank).astype(dtype) << dtype(RANK_SHIFT))


@emits("getctarank")
def getctarank(builder: Builder, instruction: Instruction) -> None:
    """Translate ``getctarank.shared::cluster.u32 rank, address``."""
    address = builder.value(instruction.operands[1], instruction.parts[-1])
    define(builder, instruction, apply(builder, rank_of, address), "u32")


def rank_of(address: PerThread) -> NDArray[np.uint32] | np.uint32:
    """Return the rank of the CTA that a shared address belongs to, as uint32."""
    return (address >> address.dtype.type(RANK_SHIFT)).astype(np.uint32)
