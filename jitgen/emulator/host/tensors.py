# SPDX-License-Identifier: Apache-2.0
"""
Tensors in host memory that claim to be on a GPU, so that the host part of a GPU kernel accepts
them.

Source: DLPack, "dlpack.h": `DLTensor`, `DLManagedTensor`, `DLDataTypeCode`, `DLDeviceType`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor as Tensor  # noqa: PLC0414  # here for its neighbours as well

from jitgen.errors import InputError

_CUDA = 2
_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4

ELEMENTS = {
    torch.int32: (_INT, 32, 1),
    torch.int64: (_INT, 64, 1),
    torch.uint8: (_UINT, 8, 1),
    torch.float16: (_FLOAT, 16, 1),
    torch.float32: (_FLOAT, 32, 1),
    torch.bfloat16: (_BFLOAT, 16, 1),
    torch.float8_e4m3fn: (10, 8, 1),
    torch.float8_e5m2: (12, 8, 1),
    torch.float8_e8m0fnu: (14, 8, 1),
    torch.float4_e2m1fn_x2: (17, 4, 2),
}
"""Code, bits and lanes of each element type."""

BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in ELEMENTS}
"""The types by name: ``float8_e4m3fn``."""

E2M1 = (17, 4, 1)
"""Four-bit values, two in a byte, for which a tensor of bytes stands; see `OnGpu`."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


_records: dict[int, _Managed] = {}
"""The exported objects in use, by address."""


def _release(address: int) -> None:
    """Forget an exported record, which its user has released."""
    _records.pop(address, None)


_deleter = _DELETER(_release)

_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


@dataclass(frozen=True, slots=True)
class OnGpu:
    """
    A tensor in host memory as device 0 of CUDA, for ``from_dlpack``.

    The tensor must live as long as whatever is made of it.

    Attributes:
        tensor: The tensor with the values.
        element: Code, bits and lanes of its elements; None for those of the tensor's type.
        shape, strides: In elements; None for the tensor's. Four-bit elements need them, for torch
            counts their bytes.
        address: Address of a peer's memory on this device; 0 for the device's own memory.
    """

    tensor: Tensor
    element: tuple[int, int, int] | None = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    address: int = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device that the protocol asks for."""
        return _CUDA, 0

    def __dlpack__(self, **_: object) -> object:
        """Return a capsule with the record that the protocol asks for."""
        shape = tuple(self.tensor.shape) if self.shape is None else self.shape
        strides = tuple(self.tensor.stride()) if self.strides is None else self.strides
        of_sides = ctypes.c_int64 * len(shape)
        code, bits, lanes = self.element or _element(self.tensor)
        tensor = _Tensor(
            self.address or self.tensor.data_ptr(), _CUDA, 0, len(shape), code, bits, lanes,
            of_sides(*shape), of_sides(*strides), 0,
        )  # fmt: skip
        record = _Managed(tensor, None, _deleter)
        _records[ctypes.addressof(record)] = record
        return _new_capsule(ctypes.addressof(record), b"dltensor", None)


def _element(tensor: Tensor) -> tuple[int, int, int]:
    if tensor.dtype not in ELEMENTS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in ELEMENTS)
        raise InputError("tensors", f"must be of {known} (got {tensor.dtype})")
    return ELEMENTS[tensor.dtype]


def made(shape: Sequence[int], dtype: str, *, counts: bool = False) -> Tensor:
    """Return a tensor of zeros, or of 0, 1, ... 7, 0, 1, ...; `dtype` is a key of `BY_NAME`."""
    if not counts:
        return torch.zeros(*shape, dtype=BY_NAME[dtype])
    return (torch.arange(math.prod(shape)) % 8).reshape(*shape).to(BY_NAME[dtype])


def filled(values: Sequence[float], like: Tensor) -> Tensor:
    """Return `values` as a tensor with the type and the shape of `like`."""
    return torch.tensor(values).to(like.dtype).reshape(like.shape)


def differing(found: Tensor, wanted: Tensor, tolerance: float) -> int:
    """Return how many values differ by more than `tolerance`; NaN equals NaN."""
    if not found.dtype.is_floating_point:
        return int(((found - wanted).abs() > tolerance).sum())
    ours, theirs = found.double(), wanted.double()
    is_close = torch.isclose(ours, theirs, rtol=0.0, atol=tolerance, equal_nan=True)
    return int((~is_close).sum())


def on_gpu(arguments: Sequence[object]) -> list[object]:
    """Return `arguments` with every tensor passing for one of device 0 of CUDA."""
    return [OnGpu(x) if isinstance(x, Tensor) else x for x in arguments]


def tensor_of(argument: object) -> Tensor | None:
    """
    Return the tensor in the device's own memory that an argument is or wraps; None for other
    values.
    """
    if isinstance(argument, OnGpu):
        return None if argument.address else argument.tensor
    return argument if isinstance(argument, Tensor) else None


def addresses(values: Sequence[int]) -> Tensor:
    """Return a tensor of addresses, int64 [values]."""
    return torch.tensor(values, dtype=torch.int64)


def span(tensor: Tensor) -> int:
    """Return the bytes from the first to the last element of `tensor`; 0 if it has none."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def read_bytes(tensor: Tensor) -> bytes:
    """
    Return the bytes from the first to the last element of a tensor, those between its elements
    included.
    """
    return ctypes.string_at(tensor.data_ptr(), span(tensor))


def write_bytes(tensor: Tensor, content: bytes) -> None:
    """Write the bytes that `read_bytes` returned back to the tensor."""
    ctypes.memmove(tensor.data_ptr(), content, len(content))
