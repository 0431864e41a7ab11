# SPDX-License-Identifier: Apache-2.0
"""The stub runtime, the copy of the host part that calls it, and tensors that pass for a GPU's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jitgen.emulator.host import runtime, symbols
from jitgen.emulator.host.launch import Device, launches
from jitgen.emulator.host.tensors import E2M1, OnGpu, read_bytes, span, write_bytes
from jitgen.errors import EmulationError, InputError, ToolchainError, UnsupportedPtx
from jitgen.settings import settings
from tests.unit.emulator_host import KERNEL, PARAMS, build

DEVICE = Device(arch="sm_90a", num_sms=6)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "cache"
    with settings.scope(cache_dir=root):
        yield root


# --- the launch -----------------------------------------------------------------------------------


def test_a_launch_is_captured(tmp_path: Path) -> None:
    found = launches(build(tmp_path), "double", [2**33 + 5, 7], device=DEVICE, params=PARAMS)

    ((name, launch),) = found
    assert name == KERNEL
    assert launch.grid == (6, 2, 1)
    assert launch.block == (128, 1, 1)
    assert launch.cluster == (2, 1, 1)
    assert launch.shared_bytes == 1000
    assert launch.is_dependent
    assert launch.params == ((2**33 + 5).to_bytes(8, "little"), b"\7\0\0\0")


def test_a_launch_of_a_kernel_that_the_ptx_lacks(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match=f"{KERNEL}, which is not in its PTX"):
        launches(build(tmp_path), "double", [1, 2], device=DEVICE, params={})


def test_an_attribute_that_nobody_knows(tmp_path: Path) -> None:
    library = build(tmp_path, attribute=200)

    with pytest.raises(UnsupportedPtx, match="device attribute 200"):
        launches(library, "double", [1, 2], device=DEVICE, params=PARAMS)


def test_a_symbol_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="cannot be loaded"):
        launches(build(tmp_path), "triple", [1, 2], device=DEVICE, params=PARAMS)


def test_attributes_follow_the_target() -> None:
    assert Device(arch="sm_90a", num_sms=5).attributes[16] == 5
    assert Device(arch="sm_90a", num_sms=5).attributes[97] == 232_448
    assert Device(arch="sm_120a", num_sms=5).capability == (12, 0)
    with pytest.raises(EmulationError, match="sm_70"):
        _ = Device(arch="sm_70", num_sms=5).attributes


# --- symbols --------------------------------------------------------------------------------------


def test_names_of_the_stub_have_the_same_length() -> None:
    assert all(len(name) == len(other) for name, other in symbols.STUBBED.items())


def test_the_stub_has_every_name(tmp_path: Path) -> None:
    runtime._compile(tmp_path / "stub.so")

    defined = {
        symbol.name
        for symbol in symbols.symbols((tmp_path / "stub.so").read_bytes())
        if not symbol.is_undefined
    }
    assert defined >= set(symbols.STUBBED.values())


def test_only_names_change(tmp_path: Path) -> None:
    library = build(tmp_path)
    changed = symbols.with_stub(library)

    wanted = {s.name for s in symbols.symbols(changed) if s.is_undefined and not s.is_weak}
    assert {"_emulLaunchKernelEx", "_emulLibraryGetKernel"} <= wanted
    assert not wanted & set(symbols.STUBBED)
    assert len(changed) == len(library)


def test_an_unknown_function_is_named_with_the_version(tmp_path: Path) -> None:
    library = build(tmp_path, "int _cudaNewThing(void); int call(void) { return _cudaNewThing(); }")

    with pytest.raises(UnsupportedPtx, match=r"_cudaNewThing.*nvidia-cutlass-dsl 4") as caught:
        symbols.with_stub(library)
    assert caught.value.unknown == ("_cudaNewThing",)


def test_the_c_library_is_known(tmp_path: Path) -> None:
    text = (
        "#include <string.h>\nint call(const char *x) { return (int)strlen(x) + memcmp(x, x, 3); }"
    )

    symbols.with_stub(build(tmp_path, text))


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF\x02\x01" + b"\0" * 30])
def test_what_is_no_library(content: bytes) -> None:
    with pytest.raises(EmulationError, match="no shared library"):
        symbols.symbols(content)


# --- the stub in the cache ------------------------------------------------------------------------


def test_the_stub_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime._kept() is not None
    (kept,) = (cache / "v1" / "emulator").glob("*.so")
    monkeypatch.setattr(runtime, "_compile", lambda path: pytest.fail("compiled again"))

    assert runtime._kept() is not None
    assert kept.stat().st_mode & 0o022 == 0


def test_a_damaged_stub_is_compiled_again(cache: Path) -> None:
    runtime._kept()
    (kept,) = (cache / "v1" / "emulator").glob("*.so")
    good = kept.read_bytes()
    kept.unlink()
    kept.write_bytes(good[:-1] + b"x")

    runtime._kept()

    assert kept.read_bytes() == good


@pytest.mark.parametrize("mode", ["off", "ro", "rw"])
def test_no_cache_is_no_obstacle(
    mode: str, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it may not, or cannot, be written, this process has a stub of its own."""
    cache_root.write_text("no folder")
    monkeypatch.setattr(runtime, "_load", lambda content: content)
    with settings.scope(cache=mode):
        assert runtime.stub.__wrapped__()._library.startswith(b"\x7fELF")


def test_a_kept_stub_is_loaded_from_the_bytes_that_were_checked(cache_root: Path) -> None:
    """The path was loaded before, and whoever swapped the file in between was loaded with it."""
    first = runtime._kept()
    (kept,) = (cache_root / "v1" / "emulator").glob("*.so")
    kept.write_bytes(b"something else")

    assert runtime._kept() == first
    assert kept.read_bytes() == first


def test_no_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime, "driver", lambda: None)

    with pytest.raises(ToolchainError, match="install gcc"):
        runtime._compile(tmp_path / "stub.so")


# --- tensors --------------------------------------------------------------------------------------


def test_a_tensor_passes_for_one_of_a_gpu() -> None:
    import tvm_ffi

    tensor = torch.zeros(3, 8, dtype=torch.float8_e4m3fn)[:, :4]

    seen = tvm_ffi.from_dlpack(OnGpu(tensor))

    assert seen.device.type == "cuda"
    assert tuple(seen.shape) == (3, 4)
    assert tuple(seen.strides) == (8, 1)
    assert str(seen.dtype) == "float8_e4m3fn"


def test_four_bit_elements() -> None:
    import tvm_ffi

    packed = torch.zeros(2, 16, dtype=torch.uint8)

    seen = tvm_ffi.from_dlpack(OnGpu(packed, element=E2M1, shape=(2, 32), strides=(32, 1)))

    assert str(seen.dtype) == "float4_e2m1fn"
    assert tuple(seen.shape) == (2, 32)


def test_a_type_without_a_code() -> None:
    import tvm_ffi

    with pytest.raises(InputError, match="complex64"):
        tvm_ffi.from_dlpack(OnGpu(torch.zeros(1, dtype=torch.complex64)))


def test_bytes_of_a_tensor_with_gaps() -> None:
    whole = torch.arange(12, dtype=torch.int32).view(3, 4)
    part = whole[:, :2]
    before = read_bytes(part)

    assert span(part) == (2 * 4 + 2) * 4
    part.zero_()
    write_bytes(part, before)
    assert torch.equal(whole, torch.arange(12, dtype=torch.int32).view(3, 4))
    assert span(torch.empty(0, 5)) == 0
