# SPDX-License-Identifier: Apache-2.0
"""
Tensor maps that the host part makes by calling the driver.

Source: CUDA Driver API, section "Tensor Map Object Management": `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

import ctypes

from jitgen.emulator.formats.tensor_map import ELEMENT_TYPES, MAX_RANK, TensorMap, encode

_TYPES = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32",
    "tf32.ftz", "b4x16", "b4x16_p64", "b6x16_p32",
)  # fmt: skip
"""Names of element types in the order of `CUtensorMapDataType`."""

_ELEMENTS = {element.name: element for element in ELEMENT_TYPES}
_MAP_ALIGNMENT = 64
_LAST_SWIZZLE = 3
_MOST_ELEMENTS, _MOST_STRIDE, _MOST_BOX, _MOST_STEP = 2**32, 2**40, 256, 8


class _Request(ctypes.Structure):
    _fields_ = (
        ("map", ctypes.c_void_p),
        ("address", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("strides", ctypes.POINTER(ctypes.c_uint64)),
        ("box", ctypes.POINTER(ctypes.c_uint32)),
        ("element_strides", ctypes.POINTER(ctypes.c_uint32)),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("interleave", ctypes.c_int),
        ("swizzle", ctypes.c_int),
        ("l2_promotion", ctypes.c_int),
        ("fill", ctypes.c_int),
    )


def encode_request(address: int) -> str:
    """
    Write the tensor map that a call requests.

    Args:
        address: Address of the call's arguments, in the layout of stub.c.

    Returns:
        Why the driver refuses it; empty where it does not.
    """
    request = _Request.from_address(address)
    if not 1 <= request.rank <= MAX_RANK or not 0 <= request.type < len(_TYPES):
        return f"tensor map of rank {request.rank} and type {request.type}"
    sizes, box, steps = (
        tuple(numbers[: request.rank])
        for numbers in (request.sizes, request.box, request.element_strides)
    )
    strides = tuple(request.strides[: request.rank - 1])
    if problem := _out_of_range(request, sizes, strides, box, steps):
        return f"tensor map: {problem}"
    made = TensorMap(
        address=request.address or 0,
        element=_ELEMENTS[_TYPES[request.type]],
        sizes=sizes,
        strides=strides,
        box=box,
        element_strides=(1, *steps[1:]),
        swizzle=request.swizzle,
        fills_nan=bool(request.fill),
        is_interleaved=bool(request.interleave),
    )
    if made.problem:
        return f"{made}: {made.problem}"
    data = encode(made)
    ctypes.memmove(request.map, data, len(data))
    return ""


def _out_of_range(
    request: _Request,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    steps: tuple[int, ...],
) -> str:
    """Return the first number that a tensor map has no room for; empty where there is none."""
    rules = (
        ((request.map or 0) % _MAP_ALIGNMENT != 0, "it does not lie at a multiple of 64 bytes"),
        (not all(1 <= size <= _MOST_ELEMENTS for size in sizes), f"sizes {sizes}"),
        (not all(0 < stride < _MOST_STRIDE for stride in strides), f"strides {strides}"),
        (any(stride % 16 for stride in strides), f"strides {strides}, not of whole 16 bytes"),
        (not all(1 <= size <= _MOST_BOX for size in box), f"box {box}"),
        (not all(1 <= step <= _MOST_STEP for step in steps), f"element strides {steps}"),
        (request.swizzle > _LAST_SWIZZLE, f"swizzle {request.swizzle} is not emulated"),
    )
    return next((text for is_broken, text in rules if is_broken), "")
