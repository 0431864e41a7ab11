# SPDX-License-Identifier: Apache-2.0
"""The stub runtime, the copy of the host part that calls it, and tensors that pass for a GPU's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jitgen.emulator.host import runtime, symbols
from jitgen.emulator.host.launch import Device, launches
from jitgen.emulator.host.native import STANDALONE, Host
from jitgen.emulator.host.tensors import E2M1, OnGpu, read_bytes, span, write_bytes
from jitgen.errors import EmulationError, InputError, ToolchainError, UnsupportedPtx
from tests.emulator.host import HOST, KERNEL, PARAMS, build

DEVICE = Device(arch="sm_90a", num_sms=6)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


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


def test_an_unknown_attribute(tmp_path: Path) -> None:
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


def test_the_stub_has_every_name() -> None:
    stub = runtime.compile_stub(STANDALONE)

    defined = {symbol.name for symbol in symbols.symbols(stub) if not symbol.is_undefined}
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


# --- the stub and the host ------------------------------------------------------------------------


def test_no_c_compiler() -> None:
    with pytest.raises(ToolchainError, match="install gcc"):
        runtime.compile_stub(Host(compiler=lambda: None))


def test_a_c_compiler_that_fails(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no space' >&2; exit 3\n")
    compiler.chmod(0o700)

    with pytest.raises(ToolchainError, match=r"cc cannot compile the emulator's runtime: no space"):
        runtime.compile_stub(Host(compiler=lambda: str(compiler)))


@pytest.mark.parametrize("given", ["gcc", None])
def test_the_compiler_is_that_of_the_environment(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv("CC", raising=False)
    else:
        monkeypatch.setenv("CC", given)

    assert STANDALONE.compiler() == shutil.which(given or "cc")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert STANDALONE.compiler() is None


def test_the_host_keeps_the_stub() -> None:
    """It is asked for by a name that follows the source, and what it returns is taken."""
    names = []

    def kept(name: str, make: Callable[[], bytes]) -> bytes:
        names.append(name)
        assert make().startswith(b"\x7fELF")
        return b"kept before"

    assert runtime.stub_library(Host(cached=kept)) == b"kept before"
    assert runtime.stub_library(STANDALONE).startswith(b"\x7fELF")
    assert re.fullmatch(r"stub-[0-9a-f]{32}", names[0])


def test_the_host_loads_the_copy_that_calls_the_stub(tmp_path: Path) -> None:
    """A digest is loaded once, so this library is one of its own."""
    given = []

    def load(content: bytes, name: str) -> Any:
        given.append((content, name))
        return STANDALONE.load(content, name)

    library = build(tmp_path, HOST + "int of_its_own;")
    host = Host(load=load)
    for _ in range(2):
        launches(library, "double", [1, 2], device=DEVICE, params=PARAMS, host=host)

    ((content, name),) = given
    assert content == symbols.with_stub(library)
    assert name == "double"


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


def test_pairs_of_four_bit_elements() -> None:
    """As torch itself exports them: two to an element."""
    import tvm_ffi

    seen = tvm_ffi.from_dlpack(OnGpu(torch.zeros(2, 16, dtype=torch.float4_e2m1fn_x2)))

    assert str(seen.dtype) == "float4_e2m1fnx2"
    assert tuple(seen.shape) == (2, 16)


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
