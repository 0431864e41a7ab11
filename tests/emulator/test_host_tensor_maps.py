# SPDX-License-Identifier: Apache-2.0
"""Tensor maps that the host part makes by calling the driver, as it would on a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from jitgen.emulator.api import emulate
from jitgen.emulator.artifact import Artifact
from jitgen.emulator.report import Report
from jitgen.errors import EmulationError, MachineFault
from tests.emulator.host import build
from tests.emulator.test_bulk_kernel import COPY

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

HOST = """
#include <stddef.h>
#include <stdint.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; void *stream; void *attributes; unsigned n; }
    config;
extern int _cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *,
                                unsigned);
extern int _cudaLibraryGetKernel(void **, void *, const char *);
extern int _cudaLaunchKernelEx(const config *, void *, void **);
extern int _cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *,
                                   const uint64_t *, const uint32_t *, const uint32_t *, int, int,
                                   int, int);
extern void cuda_dialect_assert_success(int);
extern int _cudaDeviceGetAttribute(int *, int, int);
typedef struct { int type, padding; int64_t value; } any;

static _Alignas(64) unsigned char maps[2][128];

static int encode(void *map, int64_t address, uint64_t columns, uint64_t rows)
{
    uint64_t sizes[2] = {columns, rows}, strides[1] = {STRIDE(columns)};
    uint32_t box[2] = {16, 8}, steps[2] = {1, 1};
    return _cuTensorMapEncodeTiled(map, TYPE, 2, (void *)address, sizes, strides, box, steps, 0, 0,
                                   2, 0);
}
int __tvm_ffi_copy(void *self, const any *arguments, int count, any *result)
{
    void *library, *kernel, *values[2] = {maps[0], maps[1]};
    config launch = {{1, 1, 1}, {64, 1, 1}, 0, 0, 0, 0};
    (void)self, (void)result;
    cuda_dialect_assert_success(FAILURE);
    cuda_dialect_assert_success(encode(maps[0], arguments[count - 2].value, 16, 8));
    cuda_dialect_assert_success(encode(maps[1], arguments[count - 1].value, 32, 16));
    cuda_dialect_assert_success(_cudaLibraryLoadData(&library, maps, 0, 0, 0, 0, 0, 0));
    cuda_dialect_assert_success(_cudaLibraryGetKernel(&kernel, library, "copy"));
    return _cudaLaunchKernelEx(&launch, kernel, values);
}
"""
UINT16 = 1


def run(folder: Path, host: str, source: torch.Tensor, target: torch.Tensor) -> Report:
    artifact = Artifact(library=build(folder, host), symbol="copy", ptx=COPY)
    return emulate(artifact, source, target, source.data_ptr(), target.data_ptr(), modes="quick")


def host(stride: str = "2 * (n)", kind: int = UINT16, failure: int = 0) -> str:
    defines = f"#define STRIDE(n) ({stride})\n#define TYPE {kind}\n#define FAILURE {failure}\n"
    return defines + HOST


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(8 * 16, dtype=torch.int16).view(8, 16), torch.zeros(16, 32).to(torch.int16)


def test_a_box_through_maps_of_the_host(tmp_path: Path) -> None:
    source, target = (tensor.view(torch.float16) for tensor in tensors())
    report = run(tmp_path, host(), source, target)
    assert report.is_clean, str(report)
    expected = torch.zeros(16, 32, dtype=torch.int16)
    expected[4:12, 8:24] = source.view(torch.int16)
    assert torch.equal(target.view(torch.int16), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (host(stride="2 * (n) + 8"), "strides (40,), not of whole 16 bytes"),
        (host(kind=14), "with a box of 16, not 128"),
        (host(kind=17), "rank 2 and type 17"),
        (host().replace("box[2] = {16, 8}", "box[2] = {16, 512}"), "box (16, 512)"),
        (host().replace("box[2] = {16, 8}", "box[2] = {4, 8}"), "a box row of 8 bytes"),
        (host().replace("steps[2] = {1, 1}", "steps[2] = {1, 9}"), "element strides (1, 9)"),
        (host().replace("encode(maps[0]", "encode(maps[0] + 16"), "a multiple of 64 bytes"),
    ],
)
def test_maps_that_the_driver_refuses(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MachineFault, match="cuTensorMapEncodeTiled refuses") as refused:
        run(tmp_path, text, *(tensor.view(torch.float16) for tensor in tensors()))
    assert message in str(refused.value)


def test_a_host_part_that_gives_up(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="a call returned error 7"):
        run(tmp_path, host(failure=7), *(tensor.view(torch.float16) for tensor in tensors()))


FOUR_BITS = 13


@pytest.mark.parametrize("space", ["cta", "cluster"])
def test_elements_of_four_bits_on_sm_120a(tmp_path: Path, space: str) -> None:
    """The PTX ISA lets them be loaded to .shared::cta alone there."""
    text = host(stride="(n) / 2", kind=FOUR_BITS).replace("box[2] = {16", "box[2] = {64")
    text = text.replace("value, 16, 8)", "value, 64, 8)").replace(
        "value, 32, 16)", "value, 128, 16)"
    )
    ptx = COPY.replace("sm_90a", "sm_120a").replace("{8, 4}", "{32, 4}")
    ptx = ptx.replace("2d.shared::cta.global", f"2d.shared::{space}.global")
    artifact = Artifact(library=build(tmp_path, text), symbol="copy", ptx=ptx)
    source, target = (tensor.view(torch.float16) for tensor in tensors())
    addresses = source.data_ptr(), target.data_ptr()
    if space == "cluster":
        with pytest.raises(MachineFault, match="which sm_120a does not have"):
            emulate(artifact, source, target, *addresses, modes="eager")
        return
    assert emulate(artifact, source, target, *addresses, modes="eager").is_clean
    assert torch.equal(target.view(torch.int16)[4:12, 8:24], source.view(torch.int16))
