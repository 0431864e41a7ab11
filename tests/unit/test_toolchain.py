# SPDX-License-Identifier: Apache-2.0
"""What the host is: kernels for GPUs are alike on all of them, those for the CPU are not."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jitgen
from jitgen.cache import Store
from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import ToolchainError
from jitgen.events import Event
from jitgen.runtime import kernel, spec
from jitgen.runtime.spec import spec_of
from jitgen.runtime.tiers import Tiers, readable
from tests.unit.store_fakes import publish

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=128, k=128))
SMALL = GroupedGemmConfig(layout="ragged", tile=Tile(m=8, n=64, k=128))

V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
V3 = (*V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
V4 = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
FLAGS = dict(zip(LEVELS, ((), V2, V3, V4), strict=True))

Cpu = Callable[[str], None]


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cpu]:
    """What puts this process on another x86-64 CPU, by the text of its /proc/cpuinfo."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(toolchain, "_CPUINFO", tmp_path / "cpuinfo")

    def become(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
        toolchain.cpu_level.cache_clear()

    yield become
    toolchain.cpu_level.cache_clear()


def cpuinfo(*flags: str) -> str:
    lines = (
        "processor\t: 0",
        "vmx flags\t: avx512f",
        f"flags\t\t: fpu {' '.join(flags)}",
        "bugs\t:",
    )
    return "\n".join(lines) + "\n"


def key_on(arch: Arch) -> str:
    """Return the key as a process computes it that has not done so before."""
    return spec.digest(spec.document(CONFIG, arch))


class TestLevels:
    @pytest.mark.parametrize("level", LEVELS)
    def test_each(self, cpu: Cpu, level: str) -> None:
        cpu(cpuinfo(*FLAGS[level], "unheard_of"))

        assert toolchain.cpu_level() == level
        assert toolchain.host_level(Arch.CPU) == level
        assert toolchain.host_level(Arch.SM_90A) == "x86-64"

    @pytest.mark.parametrize("missing", ["sse4_2", "cx16"])
    def test_a_gap_ends_the_ladder(self, cpu: Cpu, missing: str) -> None:
        """An emulated CPU may have AVX-512 and lack what a lower level promises."""
        cpu(cpuinfo(*(flag for flag in V4 if flag != missing)))

        assert toolchain.cpu_level() == "x86-64"

    @pytest.mark.parametrize(
        "text",
        ["", "flags\n", "flags\t:\n", "Features\t: fp asimd\n", "vmx flags : avx2\n", "\x00ÿ"],
    )
    def test_a_cpu_that_tells_nothing(self, cpu: Cpu, text: str) -> None:
        """A /proc/cpuinfo without flags used to mean that code for any CPU may run here."""
        cpu(text)

        assert toolchain.cpu_level() == "x86-64"
        assert [toolchain.runs_level(level) for level in LEVELS] == [True, False, False, False]

    @pytest.mark.parametrize("kind", ["missing", "a folder", "no text"])
    def test_a_file_that_cannot_be_read(self, cpu: Cpu, tmp_path: Path, kind: str) -> None:
        """So did one that cannot be read at all, as in a sandbox without /proc."""
        cpu("")
        path = tmp_path / "cpuinfo"
        if kind == "no text":
            path.write_bytes(b"flags\t\t: \xff\xfe " + " ".join(V3).encode() + b" \x80\n")
        else:
            path.unlink()
        if kind == "a folder":
            path.mkdir()

        assert toolchain.cpu_level() == ("x86-64-v3" if kind == "no text" else "x86-64")

    def test_what_runs_where(self, cpu: Cpu) -> None:
        """Each CPU runs its own level, those below, and none that this version does not know."""
        for number, level in enumerate(LEVELS):
            cpu(cpuinfo(*FLAGS[level]))
            assert [toolchain.runs_level(other) for other in LEVELS] == [
                at <= number for at in range(len(LEVELS))
            ]
            for unknown in ("x86-64-v5", "armv8-a", "native", "avx2", ""):
                assert not toolchain.runs_level(unknown)

    def test_64_bit_arm(self, cpu: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
        """There the base is all that is asked for, and no code of an x86 is."""
        cpu("Features\t: fp asimd sve\n")
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")

        assert toolchain.cpu_level() == "armv8-a"
        assert toolchain.host(Arch.CPU).endswith("-aarch64")
        assert not toolchain.runs_level("x86-64")

    def test_an_unknown_family(self, cpu: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
        cpu("")
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")

        with pytest.raises(ToolchainError, match=r"riscv64 hosts; known: x86_64, aarch64$"):
            toolchain.host(Arch.SM_90A)


class TestKeys:
    def test_gpu_keys_are_equal_everywhere(self, cpu: Cpu) -> None:
        """
        The host part of a GPU kernel used to be compiled for whatever CPU compiled it, so that an
        older host refused, or crashed in, what a newer one had published.
        """
        keys = set()
        for level in LEVELS:
            cpu(cpuinfo(*FLAGS[level]))
            keys.add(key_on(Arch.SM_90A))
            assert toolchain.host(Arch.SM_90A).endswith("-x86_64")

        assert len(keys) == 1

    def test_cpu_keys_carry_the_level(self, cpu: Cpu) -> None:
        """For the cpu target the host part is the kernel: each level has its own."""
        keys, hosts = set(), []
        for level in LEVELS:
            cpu(cpuinfo(*FLAGS[level]))
            keys.add(key_on(Arch.CPU))
            hosts.append(toolchain.host(Arch.CPU).partition("-")[2])

        assert len(keys) == len(LEVELS)
        assert hosts == ["x86_64", "x86_64-v2", "x86_64-v3", "x86_64-v4"]

    def test_flags_within_a_level_do_not_count(self, cpu: Cpu) -> None:
        """Two hosts of one level share entries, whatever else they have."""
        cpu(cpuinfo(*V3))
        one = key_on(Arch.CPU)
        cpu(cpuinfo("amx_tile", "avx512f", *reversed(V3), "sha_ni"))

        assert key_on(Arch.CPU) == one


class TestEntries:
    """Code for a better CPU used to be loaded where the flags could not be read: SIGILL."""

    @pytest.mark.parametrize(
        ("needs", "expected"),
        [
            (("x86-64",), ""),
            (("x86-64-v2",), ""),
            (("x86-64-v3",), "may use x86-64-v3, which this CPU lacks"),
            (("x86-64-v2", "x86-64-v4"), "may use x86-64-v4, which this CPU lacks"),
            (("x86-64-v9",), "may use x86-64-v9, which this CPU lacks"),
            (("avx2",), "may use avx2, which this CPU lacks"),  # as earlier versions wrote it
            ((), ""),
        ],
    )
    def test_what_the_cpu_lacks(
        self, cpu: Cpu, cache_root: Path, needs: tuple[str, ...], expected: str
    ) -> None:
        cpu(cpuinfo(*V2))
        entry = publish(Store.open(cache_root), 1, host_isa=needs)
        said = kernel.unsupported_isa(entry)

        assert said.endswith(expected)
        assert bool(said) == bool(expected)

    def test_it_is_a_miss(self, cpu: Cpu, cache_root: Path) -> None:
        """The entry stays for CPUs that can run it; this process gets the reason why it cannot."""
        cpu(cpuinfo(*V2))
        store = Store.open(cache_root)
        wanted = spec.document(SMALL, Arch.CPU)
        assert (
            spec.digest(wanted)
            == publish(store, 8, key_document=wanted, host_isa=("x86-64-v4",)).key
        )
        heard: list[Event] = []
        stop = jitgen.on_event(heard.append)
        spec.key.cache_clear()
        found = readable(Tiers(store), spec_of(SMALL, Arch.CPU))
        cpu(cpuinfo(*V4))
        key_here = spec.digest(wanted)
        stop()
        spec.key.cache_clear()

        assert found is None
        assert [(event.kind, event.key) for event in heard] == [("miss", key_here)]
        assert "x86-64-v4" in heard[0].detail
        entry = store.read(key_here)
        assert entry is not None
        assert kernel.unsupported_isa(entry) == ""
