# SPDX-License-Identifier: Apache-2.0
"""What is inside artifacts, checked on two small hand-written kernels; and compile processes."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from jitgen.codegen.render import Source
from jitgen.compile import compiler, inspect, workers
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.errors import ArtifactError, ToolchainError
from tests import needs

pytestmark = needs.compiler

needs_nvdisasm = pytest.mark.skipif(
    inspect._nvdisasm() is None, reason="needs nvdisasm: pip install jitgen[inspect]"
)

CONFIG = GroupedGemmConfig(
    layout=Layout.RAGGED,
    operands=Operands(
        a_dtype=DType.E4M3,
        b_dtype=DType.E4M3,
        out_dtype=DType.BF16,
        scale_granularity=ScaleGranularity.BLOCK128,
    ),
    tile=Tile(m=64, n=64, k=128),
)

GPU_TEXT = '''\
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

NUM_VALUES = {num_values}


@cute.kernel
def kernel(values: cute.Tensor, out: cute.Tensor):
    """Read some values into registers, meet, and sum them in an order the compiler cannot see."""
    thread, _, _ = cute.arch.thread_idx()
    scratch = cute.make_rmem_tensor(cute.make_layout(NUM_VALUES), cutlass.Float32)
    for i in cutlass.range(NUM_VALUES):
        scratch[i] = values[i * 96 + thread]
    cute.arch.barrier(barrier_id=1, number_of_threads=96)
    total = cutlass.Float32(0.0)
    for i in cutlass.range(NUM_VALUES):
        total += scratch[(i * i + thread) % NUM_VALUES]
    out[thread] = total


@cute.jit
def grouped_gemm(values: cute.Tensor, out: cute.Tensor, stream):
    """Launch one CTA."""
    kernel(values, out).launch(grid=(1, 1, 1), block=(96, 1, 1), stream=stream)


def arguments():
    """Arrays of any size."""
    values = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
    out = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
    return values, out, make_fake_stream(use_tvm_ffi_env_stream=True)
'''

CPU_TEXT = '''\
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor


@cute.jit
def grouped_gemm(values: cute.Tensor):
    """Write one value."""
    values[0] = cutlass.Float32(1.0)


def arguments():
    """An array of any size."""
    return (make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),)),)
'''

TASKS = '''
import hashlib
import os

from jitgen.compile import compiler
from jitgen.codegen.render import Source
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig


def compile_text(task):
    """Compile one text, and say how many threads this process had before and after."""
    before = len(os.listdir("/proc/self/task"))
    source = Source(
        config=GroupedGemmConfig.from_json(task["config"]),
        arch=Arch.SM_90A,
        name=task["name"],
        text=task["text"],
    )
    content = compiler.compile_source(source).files["kernel.so"]
    return [hashlib.sha256(content).hexdigest(), before, len(os.listdir("/proc/self/task"))]
'''


def gpu_source(name: str) -> Source:
    """A kernel that keeps its values in registers, or the same with too many to index there."""
    text = GPU_TEXT.format(num_values={"plain": 1, "spilling": 64}[name])
    return Source(config=CONFIG, arch=Arch.SM_90A, name=name, text=text)


def compiled(source: Source) -> bytes:
    artifact = compiler.compile_source(source)
    return artifact.files[artifact.library]


@pytest.fixture(scope="module")
def plain() -> bytes:
    return compiled(gpu_source("plain"))


@pytest.fixture(scope="module")
def spilling() -> bytes:
    return compiled(gpu_source("spilling"))


@pytest.fixture(scope="module")
def cpu() -> bytes:
    return compiled(Source(config=CONFIG, arch=Arch.CPU, name="host", text=CPU_TEXT))


@pytest.fixture
def no_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "_nvdisasm", lambda: None)


class TestCubin:
    def test_is_an_elf_file_for_the_gpu(self, plain: bytes) -> None:
        code = inspect.cubin(plain)

        assert code.startswith(b"\x7fELF")
        assert code in plain
        assert b".text.kernel_" in code

    def test_is_found_wherever_it_lies(self, plain: bytes) -> None:
        """Also in an object file that no linker has seen; what looks like a header is no code."""
        code = inspect.cubin(plain)
        library = code[:64] + b"\x7fELF\x02\x01" + bytes(7) + code + b"tail" * 50

        assert inspect.cubin(library) == code

    @pytest.mark.parametrize("length", [20, 64, 200, -1])
    def test_truncated_code_is_refused(self, plain: bytes, length: int) -> None:
        with pytest.raises(ArtifactError, match="holds no GPU code"):
            inspect.cubin(inspect.cubin(plain)[:length])

    def test_cpu_artifact_has_none(self, cpu: bytes) -> None:
        with pytest.raises(ArtifactError, match="host_code"):
            inspect.cubin(cpu)


class TestResources:
    def test_of_a_plain_kernel(self, plain: bytes) -> None:
        found = inspect.resources(plain)

        assert 8 <= found.registers <= 64
        assert found.threads == 96
        assert found.barriers == 2  # number 0 belongs to every kernel
        assert (found.stack_bytes, found.local_bytes, found.spill_instructions) == (0, 0, 0)
        assert (found.shared_bytes, found.mbarriers) == (0, 0)
        assert found.code_bytes > 0

    @needs_nvdisasm
    def test_of_a_kernel_that_spills(self, spilling: bytes) -> None:
        found = inspect.resources(spilling)

        assert found.stack_bytes >= 256
        assert found.spill_instructions == inspect.spills(inspect.sass(spilling)) > 0

    @pytest.mark.usefixtures("no_nvdisasm")
    def test_spills_are_unknown_without_a_disassembler(self, plain: bytes, spilling: bytes) -> None:
        assert inspect.resources(plain).spill_instructions == 0
        assert inspect.resources(spilling).spill_instructions is None

    def test_agree_with_cuobjdump(self, spilling: bytes, tmp_path: Path) -> None:
        """The attributes are read by number; the tool of the vendor reads the same."""
        nvdisasm = inspect._nvdisasm()
        tool = shutil.which("cuobjdump", path=str(Path(nvdisasm).parent) if nvdisasm else None)
        if tool is None:
            pytest.skip("needs cuobjdump: pip install nvidia-cuda-cuobjdump")
        path = tmp_path / "kernel.cubin"
        path.write_bytes(inspect.cubin(spilling))
        command = [tool, "-res-usage", str(path)]

        done = subprocess.run(command, capture_output=True, text=True, check=True)

        usage = dict(re.findall(r"(\w+):(\d+)", done.stdout))
        found = inspect.resources(spilling)
        assert found.registers == int(usage["REG"])
        assert found.stack_bytes == int(usage["STACK"])
        assert found.shared_bytes == int(usage["SHARED"])
        assert found.local_bytes == int(usage["LOCAL"])

    def test_cpu_artifact_has_none(self, cpu: bytes) -> None:
        with pytest.raises(ArtifactError):
            inspect.resources(cpu)


class TestDisassembly:
    @needs_nvdisasm
    def test_sass(self, plain: bytes) -> None:
        counts = inspect.instruction_counts(inspect.sass(plain))

        assert counts["BAR"] == 1
        assert counts["STG"] == 1
        assert counts["EXIT"] >= 1
        assert list(counts.values()) == sorted(counts.values(), reverse=True)

    @pytest.mark.usefixtures("no_nvdisasm")
    def test_missing_tool_is_named(self, plain: bytes) -> None:
        with pytest.raises(ToolchainError, match=r"pip install 'jitgen\[inspect\]'"):
            inspect.sass(plain)

    @needs_nvdisasm
    def test_code_that_the_tool_does_not_know(
        self, plain: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspect, "cubin", lambda _: b"not an ELF file")

        with pytest.raises(ToolchainError, match="nvdisasm failed: "):
            inspect.sass(plain)

    @pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
    def test_host_code(self, cpu: bytes) -> None:
        assert "__tvm_ffi_host" in inspect.host_code(cpu)

    def test_missing_objdump_is_named(self, cpu: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda _: None)

        with pytest.raises(ToolchainError, match="install binutils"):
            inspect.host_code(cpu)


class TestPtx:
    def test_names_its_target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

        text = inspect.ptx(gpu_source("plain"))

        assert ".target sm_90a" in text
        assert ".reqntid 96" in text

    def test_cpu_source_has_none(self) -> None:
        with pytest.raises(ArtifactError, match="no PTX"):
            inspect.ptx(Source(config=CONFIG, arch=Arch.CPU, name="host", text=CPU_TEXT))


def listing(*instructions: str) -> str:
    """A disassembly of `instructions`."""
    lines = [f"        /*{16 * i:04x}*/  {text} ;" for i, text in enumerate(instructions)]
    return "\n".join([".text.kernel_0:", *lines, ".L_x_1:"])


MMA = "QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


class TestListing:
    """Counting in a disassembly."""

    def test_predicates_and_operands_are_left_out(self) -> None:
        text = listing("@!P0 BRA `(.L_x_1)", "@UP0 UMOV UR4, UR5", "LDG.E.64 R2, [R2+0x10]", "NOP")

        assert inspect.mnemonics(text) == ["BRA", "UMOV", "LDG.E.64", "NOP"]

    def test_instruction_counts(self) -> None:
        text = listing("LDG.E R1, [R2]", "LDG.E.64 R4, [R2]", "EXIT")

        assert inspect.instruction_counts(text) == {"LDG": 2, "EXIT": 1}

    def test_count_takes_whole_words(self) -> None:
        text = listing("LDG.E R1, [R2]", "LDGSTS [R1], [R2]", WAIT)

        assert inspect.count(text, "LDG") == 1
        assert inspect.count(text, "WARPGROUP.DEPBAR") == 1
        assert inspect.count(text, "DEPBAR") == 0

    def test_spills(self) -> None:
        assert inspect.spills(listing("STL.64 [R1], R2", "LDL R2, [R1]", "LDS R2, [R1]")) == 2

    @pytest.mark.parametrize(
        ("instructions", "chain", "serialised"),
        [
            ([MMA, MMA, MMA, MMA, WAIT] * 3, 4, False),
            ([MMA, MMA, MMA, MMA, WAIT] * 3 + [WAIT], 4, False),
            ([MMA, WAIT] * 4, 4, True),
            ([MMA, MMA, WAIT] * 4, 4, True),
            ([MMA, MMA, WAIT] * 4, 2, False),
            (["HGMMA.64x64x16.F32 R24, gdesc[UR8], R24", WAIT] * 8, 4, True),
            (["NOP"], 4, False),
        ],
    )
    def test_wgmma_serialised(self, instructions: list[str], chain: int, serialised: bool) -> None:
        assert inspect.wgmma_serialised(listing(*instructions), chain=chain) is serialised


class TestCompileProcesses:
    """The compiler in forked processes: `jitgen.compile.workers` with what it is made for."""

    def test_same_bytes_as_here(
        self, plain: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever a process did before: this one has compiled others, and may have torch."""
        (tmp_path / "inspect_tasks.py").write_text(TASKS, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        source = gpu_source("plain")
        tasks = []
        for _ in range(2):
            config = source.config.to_json()
            tasks.append({"name": source.name, "text": source.text, "config": config})

        outcomes = list(workers.run("inspect_tasks:compile_text", tasks, jobs=2, timeout_s=120))

        assert [outcome.error for outcome in outcomes] == [None, None]
        digests = {outcome.result[0] for outcome in outcomes}
        assert digests == {hashlib.sha256(plain).hexdigest()}
        assert [outcome.result[1:] for outcome in outcomes] == [[1, 1], [1, 1]]
