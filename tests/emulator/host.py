# SPDX-License-Identifier: Apache-2.0
"""The host part of a small kernel, in C: what the compiler of real ones emits as native code."""

from __future__ import annotations

import subprocess
from pathlib import Path

KERNEL = "kernel_double"
PARAMS = {KERNEL: [8, 4]}

HOST = """
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { int id, padding; unsigned value[16]; } attribute;
typedef struct { dim3 grid, block; size_t shared; void *stream; attribute *attributes; unsigned n; }
    config;
extern int _cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *,
                                unsigned);
extern int _cudaLibraryGetKernel(void **, void *, const char *);
extern int _cudaDeviceGetAttribute(int *, int, int);
extern int _cudaLaunchKernelEx(const config *, void *, void **);
extern int cuda_dialect_init_library_once(void **, int (*)(void **), int (*)(void **, int), void *);
extern int CuteDSLRT_TVMFFISetRaisedCudaError(int);
typedef struct { int type, padding; long value; } any;

static void *library, *kernel;
static const char code[] = "code";

static int initialise(void **found)
{
    return _cudaLibraryLoadData(found, code, 0, 0, 0, 0, 0, 0);
}
static int load(void **found, int device)
{
    char name[] = "kernel_double"; /* on the stack, as the compiler has it */
    (void)device;
    return _cudaLibraryGetKernel(&kernel, *found, name);
}
/* the last two arguments: where the values are, and how many */
int __tvm_ffi_double(void *self, const any *arguments, int count, any *result)
{
    int sms = 0, error = _cudaDeviceGetAttribute(&sms, ATTRIBUTE, 0);
    long address = arguments[count - 2].value;
    int number = (int)arguments[count - 1].value;
    attribute attributes[2] = {{4, 0, {2, 1, 1}}, {6, 0, {1}}};
    void *values[2] = {&address, &number};
    config launch = {{sms, 2, 1}, {128, 1, 1}, 1000, 0, attributes, 2};
    if (!error)
        error = cuda_dialect_init_library_once(&library, initialise, load, 0);
    if (!error)
        error = _cudaLaunchKernelEx(&launch, kernel, values);
    (void)self, (void)result;
    return error ? CuteDSLRT_TVMFFISetRaisedCudaError(error) : 0;
}
"""
"""Launches `KERNEL` with two parameters, a pointer and an int, by an entry called ``double``."""


def build(folder: Path, text: str = HOST, *, attribute: int = 16) -> bytes:
    """Return the library of `text`; its grid is as wide as a device `attribute` says."""
    source, library = folder / "host.c", folder / "kernel.so"
    source.write_text(text)
    options = ["-shared", "-fPIC", f"-DATTRIBUTE={attribute}"]
    subprocess.run(["gcc", *options, "-o", str(library), str(source)], check=True)
    return library.read_bytes()
