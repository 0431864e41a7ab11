# SPDX-License-Identifier: Apache-2.0
"""
The launches that a call makes, ready for the machine: of an artifact, or of PTX alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitgen.emulator.artifact import Artifact
from jitgen.emulator.host.cubin import MachineCode, kernels
from jitgen.emulator.host.launch import Device, launches
from jitgen.emulator.host.native import Host
from jitgen.emulator.host.tensors import OnGpu, Tensor, tensor_of
from jitgen.emulator.machine.launch_rules import Kernel, as_launched
from jitgen.emulator.machine.machine import Launch
from jitgen.emulator.program.translate import Program, translate
from jitgen.errors import InputError


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    The kernels, launches and tensors of a call.

    Attributes:
        programs: Every kernel that it has, launched or not.
        launches: Programs and launches, in order.
        tensors: Tensors of the device that it is given, by the name that messages call them.
    """

    programs: list[Program]
    launches: list[tuple[Program, Launch]]
    tensors: dict[str, Tensor]


def of_artifact(
    artifact: Artifact,
    arguments: Sequence[object],
    names: Sequence[str],
    num_sms: int,
    host: Host,
) -> Prepared:
    """
    Return the launches of an artifact: translate its PTX, and run its host part with `arguments`,
    which messages call `names`.
    """
    programs = {
        entry: translate(artifact.ptx, artifact.source, entry) for entry in artifact.entries
    }
    found = launches(
        artifact.library,
        artifact.symbol,
        arguments,
        device=Device(arch=artifact.arch, num_sms=num_sms),
        params={entry: [size for _, size in program.params] for entry, program in programs.items()},
        host=host,
    )
    codes = kernels(artifact.library)
    return Prepared(
        list(programs.values()),
        [
            (programs[entry], _launched(programs[entry], launch, codes.get(entry, MachineCode())))
            for entry, launch in found
        ],
        _tensors(arguments, names),
    )


def of_program(
    program: Program, launch: Launch, names: Sequence[str], values: Sequence[object]
) -> Prepared:
    """
    Return the launch of a kernel with `values` as arguments, one for each of its parameters.

    Raises:
        InputError: The arguments do not fit the parameters.
    """
    launch = replace(launch, params=_packed(program.params, values))
    launched = [(program, _launched(program, launch, MachineCode()))]
    return Prepared([program], launched, _tensors(values, names))


def _tensors(arguments: Sequence[object], names: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors among `arguments`, by the names that messages call them."""
    return {
        names[index] if index < len(names) else f"argument {index}": tensor
        for index, value in enumerate(arguments)
        if (tensor := tensor_of(value)) is not None
    }


def _packed(params: Sequence[tuple[str, int]], arguments: Sequence[object]) -> tuple[bytes, ...]:
    """Return the bytes of each parameter; `params` are their names and sizes in bytes."""
    if len(params) != len(arguments):
        wanted = ", ".join(f"{name} ({size} bytes)" for name, size in params) or "none"
        raise InputError("arguments", f"must be one for each of {wanted} (got {len(arguments)})")
    return tuple(
        _bytes_of(name, size, value) for (name, size), value in zip(params, arguments, strict=True)
    )


def _bytes_of(name: str, size: int, value: object) -> bytes:
    if isinstance(value, OnGpu) and value.address:
        value = value.address
    elif (tensor := tensor_of(value)) is not None:
        value = tensor.data_ptr()
    if isinstance(value, bytes) and len(value) == size:
        return value
    try:
        if isinstance(value, int):
            return value.to_bytes(size, "little", signed=value < 0)
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    except (KeyError, OverflowError, struct.error) as error:
        raise InputError(name, f"must fit its {size} bytes (got {value!r})") from error


def _launched(program: Program, launch: Launch, code: MachineCode) -> Launch:
    """Return a launch as hardware makes it, of a kernel with that machine code."""
    kernel = Kernel(
        target=program.module.target,
        opcodes=tuple((instruction.line, instruction.op) for instruction in program.code),
        directives=program.module.directives,
        shared_end=program.shared_end,
        registers=code.registers,
        lacks_setmaxnreg=not code.has_setmaxnreg,
    )
    return as_launched(kernel, launch)
