# SPDX-License-Identifier: Apache-2.0
"""Which parts of the compiler are installed decides the key, and what a machine can do."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitgen.compile import toolchain
from jitgen.compile.toolchain import CALLS, COMPILER, FLAVOURS, PARTS
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import ToolchainError
from jitgen.runtime import kernel, spec

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=128, k=128))
RELEASE = dict.fromkeys(PARTS, "4.8.1")
CU12, CU13 = FLAVOURS[12], FLAVOURS[13]
FFI = {CALLS: "0.1.15", "jinja2": "3.1"}

Host = Callable[..., None]


def forget() -> None:
    for function in (toolchain.versions, toolchain._flavour, spec.key):
        function.cache_clear()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """What puts this process on a host with these distributions and this driver."""

    def become(distributions: dict[str, str], driver: int | None = None) -> None:
        forget()
        monkeypatch.setattr(toolchain, "version", distributions.get)
        monkeypatch.setattr(toolchain, "driver_cuda", lambda: driver)

    yield become
    forget()


def key_here() -> str:
    forget()
    return spec.key(CONFIG, Arch.SM_90A)


class TestRelease:
    """One part names the whole."""

    def test_a_machine_that_compiles(self, host: Host) -> None:
        host(RELEASE | {CU12: "4.8.1"} | FFI)

        assert toolchain.versions() == RELEASE | {CU12: "4.8.1", CALLS: "0.1.15"}
        assert toolchain.why_not_compiling() == ""

    @pytest.mark.parametrize("flavour", [CU12, CU13])
    def test_a_machine_that_only_loads_has_the_same_keys(self, host: Host, flavour: str) -> None:
        """Without the compiler's distributions there used to be no keys, and no kernels."""
        host(RELEASE | {flavour: "4.8.1"} | FFI)
        wanted = key_here()
        host({flavour: "4.8.1", CALLS: "0.1.15"})

        assert key_here() == wanted
        with pytest.raises(ToolchainError, match=rf"compiled here: {COMPILER}, jinja2 are not"):
            toolchain.require_compiler()

    def test_every_version_counts(self, host: Host) -> None:
        """Another release, and another way to call kernels, is another key."""
        keys = set()
        for release, calls in (("4.8.1", "0.1.15"), ("4.8.0", "0.1.15"), ("4.8.1", "0.1.11")):
            host({CU12: release, CALLS: calls})
            keys.add(key_here())

        assert len(keys) == 3

    def test_what_is_installed_is_believed(self, host: Host) -> None:
        """Parts of different releases are a doubtful compiler, and its keys are its own."""
        host(RELEASE | {CU12: "4.8.1"} | FFI)
        wanted = key_here()
        host(RELEASE | {CU12: "4.8.1", PARTS[1]: "4.8.0"} | FFI)

        assert toolchain.versions()[PARTS[1]] == "4.8.0"
        assert key_here() != wanted

    @pytest.mark.parametrize(
        ("distributions", "missing"),
        [
            ({}, CU12),
            (RELEASE | FFI, CU12),
            ({CU12: "4.8.1"}, CALLS),
            (RELEASE | {CU13: "4.8.1"}, CALLS),
        ],
    )
    def test_what_is_not_there(
        self, host: Host, distributions: dict[str, str], missing: str
    ) -> None:
        host(distributions)

        with pytest.raises(ToolchainError, match=rf"^{missing} .*not installed.*docs/install\.md"):
            toolchain.versions()

    @pytest.mark.parametrize("missing", [*PARTS, "jinja2"])
    def test_what_compiling_takes(self, host: Host, missing: str) -> None:
        host({n: v for n, v in (RELEASE | {CU12: "4.8.1"} | FFI).items() if n != missing})

        assert toolchain.why_not_compiling().startswith(f"{missing} is not installed")

    def test_the_parts_require_each_other(self) -> None:
        """What the completion rests on, of the release that is installed."""
        required = {
            text.partition(";")[0].strip()
            for part in (COMPILER, *(name for name in FLAVOURS.values() if toolchain.version(name)))
            for text in importlib.metadata.requires(part) or ()
        }
        release = toolchain.version(COMPILER)

        assert {f"{PARTS[1]}=={release}", f"{CU12}=={release}"} <= required
        assert f"{PARTS[2]}=={release}" in (importlib.metadata.requires(PARTS[1]) or ())
        assert {toolchain.version(part) for part in (*PARTS, CU12)} == {release}


class TestFlavour:
    """Of two code generators one is in use; entries of the other are misses."""

    BOTH = RELEASE | {CU12: "4.8.1", CU13: "4.8.1"} | FFI

    @pytest.mark.parametrize(
        ("driver", "expected"), [(None, 13), (13, 13), (14, 13), (12, 12), (11, 13)]
    )
    def test_of_two(self, host: Host, driver: int | None, expected: int) -> None:
        """As the compiler chooses; what no driver supports is left for it to refuse."""
        host(self.BOTH, driver)

        assert toolchain.flavour() == expected
        named = [name for name in FLAVOURS.values() if name in toolchain.versions()]
        assert named == [FLAVOURS[expected]]

    @pytest.mark.parametrize("cuda", [12, 13])
    def test_one_needs_no_driver(self, host: Host, cuda: int) -> None:
        host({FLAVOURS[cuda]: "4.8.1"} | FFI, 12)

        assert toolchain.flavour() == cuda

    def test_keys(self, host: Host) -> None:
        """A key used to list both, whichever of them had made the code."""
        keys = []
        for distributions, driver in (
            (RELEASE | {CU12: "4.8.1"} | FFI, None),
            (self.BOTH, 12),
            (RELEASE | {CU13: "4.8.1"} | FFI, None),
            (self.BOTH, None),
        ):
            host(distributions, driver)
            keys.append(key_here())

        assert keys[0] == keys[1] != keys[2] == keys[3]

    def test_the_runtime_library_is_of_the_same(
        self, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for cuda in FLAVOURS:
            path = tmp_path / f"cu{cuda}" / "lib" / kernel.RUNTIME_LIBRARY
            path.parent.mkdir(parents=True)
            path.touch()
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
        for driver, expected in ((12, "cu12"), (13, "cu13"), (None, "cu13")):
            host(self.BOTH, driver)
            found = kernel.runtime_library()
            assert found is not None
            assert found.parts[-3] == expected

    def test_a_generator_that_keys_do_not_name(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the compiler chose otherwise, what it makes is not published."""
        import sys

        from jitgen.compile import compiler

        name = "cutlass._mlir._mlir_libs._cutlass_ir"
        for cuda, expected in ((12, "for CUDA 12, and keys name 13"), (13, "")):
            host(self.BOTH)
            path = f"/site/_cutlass_ir.cu{cuda}.cpython-311-x86_64-linux-gnu.so"
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=path))  # type: ignore[arg-type]
            assert compiler._other_generator().endswith(expected)
            assert bool(compiler._other_generator()) == bool(expected)


class TestDriver:
    @pytest.mark.parametrize(("number", "expected"), [(12090, 12), (13010, 13)])
    def test_it_is_asked(self, monkeypatch: pytest.MonkeyPatch, number: int, expected: int) -> None:
        def answer(pointer: object) -> int:
            pointer._obj.value = number  # type: ignore[attr-defined]
            return 0

        library = SimpleNamespace(cuDriverGetVersion=answer)
        monkeypatch.setattr(ctypes, "CDLL", lambda _: library)

        assert toolchain.driver_cuda() == expected

    @pytest.mark.parametrize("trouble", [OSError, AttributeError, None])
    def test_none(self, monkeypatch: pytest.MonkeyPatch, trouble: type[Exception] | None) -> None:
        def load(_: str) -> SimpleNamespace:
            if trouble is not None:
                raise trouble("no")
            return SimpleNamespace(cuDriverGetVersion=lambda _: 100)

        monkeypatch.setattr(ctypes, "CDLL", load)

        assert toolchain.driver_cuda() is None
