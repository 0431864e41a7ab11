# SPDX-License-Identifier: Apache-2.0
"""
Reads an artifact: machine code, registers, stack, barriers; and compiles a source to PTX.

The GPU code of an artifact is an ELF file (a cubin) inside the shared library. Reading it and its
resources needs no tool; disassembling needs nvdisasm, which ``pip install jitgen[inspect]``
installs. Dynamic shared memory is an attribute of the launch and therefore not found here: it is
the ``smem_bytes`` that `jitgen.targets.legality` derives, and of an edited source what
`jitgen.verify.launched` finds.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.compile import elf
from jitgen.errors import ArtifactError, ToolchainError
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.codegen.render import Source

_TIMEOUT_S = 120

# attributes in .nv.info sections, by the numbers that `cuobjdump -elf` gives names to
_REQNTID = 0x10
_FRAME_SIZE = 0x11
_MIN_STACK_SIZE = 0x12
_REGCOUNT = 0x2F
_NUM_MBARRIERS = 0x38
_NUM_BARRIERS = 0x4C
_FORMAT_SIZED = 4

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.\w+)*)", re.MULTILINE
)

_LINE = re.compile(r'^\s*//## File .*?/kernel\.py", line (\d+)')


@frozen
class Resources:
    """
    Resources of a GPU kernel on a multiprocessor.

    Attributes:
        registers: Registers of each thread at launch; ``setmaxnreg`` moves registers between warps
            later.
        threads: Threads of each CTA that the kernel requires; 0 if it does not require a number.
        stack_bytes: Local memory of each thread for spilled registers and arrays; 0 is expected.
        local_bytes: Local memory of each thread in the kernel's section ``.nv.local``.
        shared_bytes: Static shared memory of each CTA, including the part that the system reserves.
        barriers: Named barriers (``bar.sync``) of each CTA; all 16 where code computes the number.
        mbarriers: Barriers in shared memory that the kernel initialises.
        spill_instructions: Loads and stores of spilled registers in the code. None if there is a
            stack, but no disassembler to count them.
        code_bytes: Size of the machine code.
    """

    registers: int
    threads: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    barriers: int
    mbarriers: int
    spill_instructions: int | None
    code_bytes: int


def cubin(library: bytes) -> bytes:
    """
    Return the GPU code inside ``kernel.so`` or ``kernel.o``: an ELF file of its own.

    Raises:
        ArtifactError: The library holds no GPU code, as an artifact for the cpu.
    """
    start = library.find(elf.MAGIC)
    while start >= 0:
        size = elf.size_at(library, start, elf.MACHINE_CUDA)
        if size:
            return library[start : start + size]
        start = library.find(elf.MAGIC, start + 1)
    raise ArtifactError(
        "the library holds no GPU code; that of a cpu artifact is shown by host_code()"
    )


def resources(library: bytes) -> Resources:
    """
    Return the registers, memory and barriers of the kernel in `library`.

    Needs no tool: a kernel without a stack has no spills. If there is a stack, spills are counted
    in the disassembly, if a disassembler is installed.

    Raises:
        ArtifactError: There is no GPU code.
    """
    sections = {section.name: section for section in elf.sections(cubin(library))}
    kernel = next((name[6:] for name in sections if name.startswith(".text.")), None)
    if kernel is None:
        raise ArtifactError("the GPU code in the library holds no kernel")
    facts: dict[int, tuple[int, ...]] = {}
    for name in (".nv.info", f".nv.info.{kernel}"):
        if name in sections:
            facts |= dict(_attributes(sections[name].content))
    text = sections[f".text.{kernel}"]
    # sections of a function begin with its symbol number
    stack = max(facts.get(_FRAME_SIZE, (0, 0))[1], facts.get(_MIN_STACK_SIZE, (0, 0))[1])
    local = _size(sections, f".nv.local.{kernel}")
    threads = facts.get(_REQNTID, (0, 0, 0))
    return Resources(
        registers=facts.get(_REGCOUNT, (0, 0))[1],
        threads=threads[0] * threads[1] * threads[2],
        stack_bytes=stack,
        local_bytes=local,
        shared_bytes=_size(sections, f".nv.shared.{kernel}"),
        # CUDA 13 says it in an attribute, CUDA 12 in the upper flags of the code's section
        barriers=facts.get(_NUM_BARRIERS, (text.flags >> 20 & 0x7F,))[0],
        mbarriers=facts.get(_NUM_MBARRIERS, (0,))[0],
        spill_instructions=_spills_if_known(library) if stack or local else 0,
        code_bytes=text.size,
    )


def _spills_if_known(library: bytes) -> int | None:
    return None if _nvdisasm() is None else spills(sass(library))


def _size(sections: dict[str, elf.Section], name: str) -> int:
    return sections[name].size if name in sections else 0


def _attributes(info: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """
    Yield number and value of each attribute in a .nv.info section.

    An attribute is a format, a number and 16 bits, which are the value, or the size of the value
    that follows: 32-bit words.
    """
    position = 0
    while position + 4 <= len(info):
        form, number, value = struct.unpack_from("<BBH", info, position)
        position += 4
        if form != _FORMAT_SIZED:
            yield number, (value,)
            continue
        yield number, struct.unpack_from(f"<{value // 4}I", info, position)
        position += value


def sass(library: bytes, *options: str) -> str:
    """
    Return the disassembly of the GPU code in `library`; `options` are nvdisasm's.

    Raises:
        ArtifactError: There is no GPU code.
        ToolchainError: nvdisasm is not installed, or does not know this code.
    """
    code = cubin(library)
    tool = _nvdisasm()
    if tool is None:
        raise ToolchainError("nvdisasm was not found; run: pip install 'jitgen[inspect]'")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(code)
        return _output([tool, "--print-code", *options, str(path)])


def host_code(library: bytes) -> str:
    """
    Return the disassembly of the host part of `library`: all there is in an artifact for the cpu.

    Raises:
        ToolchainError: objdump is not installed, or does not know this code.
    """
    tool = shutil.which("objdump")
    if tool is None:
        raise ToolchainError("objdump was not found; install binutils")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(library)
        return _output([tool, "--disassemble", "--no-show-raw-insn", str(path)])


def ptx(source: Source, *, line_info: bool = False) -> str:
    """
    Return the PTX of `source`, by compiling it: an artifact keeps machine code only.

    Args:
        source: Source to compile.
        line_info: Note which line of the source each instruction comes from.

    Raises:
        ArtifactError: The target is the cpu.
        ToolchainError: The compiler is not installed.
        CompileError: The compiler refused the source.
    """
    from jitgen.compile import compiler

    if not source.arch.is_gpu:
        raise ArtifactError(f"{source.name} is host code and has no PTX")
    return compiler.compile_source(source, wants_ptx=True, line_info=line_info, links=False).ptx


def mnemonics(disassembly: str) -> list[str]:
    """Return every instruction of `disassembly` in order, without predicate and operands."""
    return _INSTRUCTION.findall(disassembly)


def instruction_counts(disassembly: str) -> dict[str, int]:
    """Return how often each operation occurs: ``{"QGMMA": 4, ...}``, the most frequent first."""
    counts = Counter(name.partition(".")[0] for name in mnemonics(disassembly))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def count(disassembly: str, operation: str) -> int:
    """
    Return how often `operation` occurs in `disassembly`, with any suffixes.

    ``"WARPGROUP.DEPBAR"`` counts ``WARPGROUP.DEPBAR.LE`` too, and ``"LD"`` does not count ``LDG``.
    """
    return sum(f"{name}.".startswith(f"{operation}.") for name in mnemonics(disassembly))


def spills(disassembly: str) -> int:
    """Return the number of instructions in `disassembly` that access local memory."""
    return count(disassembly, "STL") + count(disassembly, "LDL")


def spill_lines(source: Source) -> dict[int, int]:
    """
    Return how many instructions access spilled registers by line of `source`, most first.

    The source is compiled once more, with line information, which leaves the instructions as they
    are. The compiler's own report (``remarks{ptx}``) names one likely line for the whole kernel.

    Raises:
        ToolchainError: Compiler or nvdisasm is not installed.
        CompileError: The compiler refused the source.
    """
    from jitgen.compile import compiler

    made = compiler.compile_source(source, line_info=True, links=False)
    rows = sass(made.files[made.library], "--print-line-info").splitlines()
    found: Counter[int] = Counter()
    for row, line in zip(rows, sass_lines(rows), strict=True):
        if line is not None and spills(row):
            found[line] += 1
    return dict(found.most_common())


def sass_lines(rows: Iterable[str]) -> Iterator[int | None]:
    """Yield for each row of a disassembly with line information the line of the source."""
    line = None
    for row in rows:
        if place := _LINE.search(row):
            line = int(place[1])
        yield line


def wgmma_serialised(disassembly: str, *, chain: int = 4) -> bool:
    """
    Return whether the assembler made warpgroup MMAs wait for one another.

    It does so, with only a warning, if it cannot prove that no other instruction uses their
    registers. Then a wait (``WARPGROUP.DEPBAR``) follows each MMA instead of each chain of them,
    and the tensor cores idle in between. The instructions of the whole kernel are counted, and one
    more wait is allowed.

    Args:
        disassembly: SASS of an sm_90a kernel.
        chain: MMAs that the source issues before it waits: for a scaled block of 128 along K in
            one-byte types, 4 of 32 each.
    """
    num_mmas, num_waits = wgmma_counts(disassembly)
    return (num_waits - 1) * chain > num_mmas


def wgmma_counts(disassembly: str) -> tuple[int, int]:
    """Return the number of warpgroup MMAs in `disassembly`, and of waits for them."""
    operations = [name.split(".") for name in mnemonics(disassembly)]
    num_mmas = sum(parts[0].endswith("GMMA") for parts in operations)
    return num_mmas, sum(parts[:2] == ["WARPGROUP", "DEPBAR"] for parts in operations)


def wgmmas(library: bytes) -> dict[str, int]:
    """
    Return the numbers of warpgroup MMAs and of waits for them in the kernel of `library`, as
    ``wgmmas`` and ``wgmma_waits``; empty where it has none, or where no disassembler is installed
    to count them.

    Raises:
        ArtifactError: There is no GPU code.
    """
    if _nvdisasm() is None:
        return {}
    num_mmas, num_waits = wgmma_counts(sass(library))
    return {"wgmmas": num_mmas, "wgmma_waits": num_waits} if num_mmas else {}


def _nvdisasm() -> str | None:
    """
    Return the path of nvdisasm: that of the wheel, which fits the compiler, or else the one on
    PATH; None if there is none.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(Path(folder).glob("*/bin/nvdisasm"))
        if found:
            return str(found[-1])
    return shutil.which("nvdisasm")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ToolchainError(f"{Path(command[0]).name} failed: {lines[0]}")
    return done.stdout
