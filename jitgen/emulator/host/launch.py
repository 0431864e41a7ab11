# SPDX-License-Identifier: Apache-2.0
"""
Runs the host part of an artifact and returns what it would launch.

Source: CUDA Runtime API, sections "Execution Control" (`cudaLaunchConfig_t`,
`cudaLaunchAttributeID`) and "Device Management" (`cudaDeviceAttr`).
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitgen.emulator.formats.tensor_map import ELEMENT_TYPES, MAX_RANK, TensorMap, encode
from jitgen.emulator.host.native import STANDALONE, Function, Host, Library, call
from jitgen.emulator.host.runtime import stub
from jitgen.emulator.host.symbols import with_stub
from jitgen.emulator.host.tensors import on_gpu
from jitgen.emulator.machine import limits
from jitgen.emulator.machine.machine import Launch
from jitgen.errors import EmulationError, MachineFault, UnsupportedPtx

_MULTIPROCESSOR_COUNT = 16
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_INVALID_VALUE = 1
_SHARED_OPTIN = 97
_LIMITS = {
    1: limits.MAX_THREADS,  # of a block
    **dict(zip((2, 3, 4), limits.MAX_BLOCK, strict=True)),
    **dict(zip((5, 6, 7), limits.MAX_GRID, strict=True)),
    8: limits.SHARED_WITHOUT_CONSENT,
    10: 32,  # threads of a warp
    12: limits.REGISTERS,  # of a block
    39: 2048,  # threads of a multiprocessor
    82: limits.REGISTERS,  # of a multiprocessor
    106: 32,  # its blocks
    111: 1024,  # shared memory that the system takes of each block
}
"""Attributes that are the same on every GPU that the emulator knows, by `cudaDeviceAttr`."""

_CLUSTER_DIMENSION = 4
_STREAM_SERIALIZATION = 6
_MOST_SHARED, _NONPORTABLE = 8, 14
"""`cudaFuncAttribute`: largest dynamic shared memory, clusters that are not portable."""

_NUM_KERNEL_ATTRIBUTES = 16


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", _Dim3),
        ("block", _Dim3),
        ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """
    The GPU that the host part finds.

    Attributes:
        arch: Target, for example ``sm_100a``.
        num_sms: Number of its SMs.
    """

    arch: str
    num_sms: int

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability: major, minor."""
        major, minor = divmod(limits.target_of(self.arch).number, 10)
        return major, minor

    @property
    def attributes(self) -> dict[int, int]:
        """The values of `cudaDeviceGetAttribute`, by number."""
        major, minor = self.capability
        return _LIMITS | {
            _MULTIPROCESSOR_COUNT: self.num_sms,
            _CAPABILITY_MAJOR: major,
            _CAPABILITY_MINOR: minor,
            _SHARED_OPTIN: limits.LIMITS[major].shared_bytes,
        }


_lock = threading.Lock()
_loaded: dict[str, Library] = {}
"""Host parts by digest; never unloaded, because it is unknown when their last function ends."""


def launches(
    library: bytes,
    symbol: str,
    arguments: Sequence[object],
    *,
    device: Device,
    params: Mapping[str, Sequence[int]],
    host: Host = STANDALONE,
) -> list[tuple[str, Launch]]:
    """
    Call the function `symbol` of `library` and return the kernels and launches that it makes.

    One call at a time: others wait.

    Args:
        library: The shared library of the artifact. It must be trusted: its code runs.
        symbol: The function.
        arguments: Its arguments; tensors in host memory pass for tensors of the device.
        device: The GPU that it finds.
        params: For each kernel the sizes of its parameters in bytes.
        host: The machine that this runs on.

    Raises:
        EmulationError: The library cannot be loaded, launches a kernel that is not in `params`, or
            ends because a call of the runtime returned an error.
        UnsupportedPtx: It calls functions, or reads properties of the device, that the stub does
            not have.
        ToolchainError: There is no C compiler to make the stub runtime.
        MachineFault: It makes a tensor map that the driver refuses.
        Exception: Anything that the function raises about its arguments.
    """
    found: list[tuple[str, Launch]] = []
    failed: list[str] = []
    refused: list[str] = []

    def on_launch(config: int, kernel: bytes, values: int, attributes: int) -> None:
        name = kernel.decode("ascii", "replace")
        if name in params:
            found.append((name, _launch(config, values, params[name], attributes)))
        else:
            failed.append(name)

    def on_tensor_map(request: int) -> int:
        problem = encode_request(request)
        if problem:
            refused.append(problem)
        return _INVALID_VALUE if problem else 0

    with _lock:
        runtime = stub(host)  # first, because the library looks up its functions when it is loaded
        function = _function(library, symbol, host)
        runtime.begin(on_launch, on_tensor_map, device.attributes)
        try:
            call(function, on_gpu(arguments))
        finally:
            unknown, error = runtime.unknown_attribute, runtime.asserted_error
            runtime.end()
            if refused:
                raise MachineFault(f"cuTensorMapEncodeTiled refuses a {refused[0]}")
            if unknown is not None:
                raise UnsupportedPtx(
                    f"the host part of {symbol} asks for device attribute {unknown}, which the "
                    "emulator does not know",
                    unknown=(f"cudaDeviceAttr {unknown}",),
                )
    if error:
        raise EmulationError(f"the host part of {symbol} ends as a call returned error {error}")
    if failed:
        raise EmulationError(f"{symbol} launches {failed[0]}, which is not in its PTX")
    return found


def _function(content: bytes, symbol: str, host: Host) -> Function:
    """Load a copy of the library `content` that calls the stub, and return its function."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        if digest not in _loaded:
            _loaded[digest] = host.load(with_stub(content), symbol)
        return _loaded[digest][symbol]
    except (AttributeError, KeyError, OSError, RuntimeError, ValueError) as error:
        raise EmulationError(f"the host part of {symbol} cannot be loaded: {error}") from error


def _launch(config: int, values: int, sizes: Sequence[int], of_kernel: int) -> Launch:
    """
    Return the launch that the host part requests.

    Args:
        config: Address of a `cudaLaunchConfig_t`.
        values: Address of the addresses of the kernel's arguments.
        sizes: Bytes of each argument.
        of_kernel: Address of the kernel's attributes, -1 where one was not set.
    """
    given = _Config.from_address(config)
    attributes = {item.id: tuple(item.value) for item in given.attributes[: given.num_attributes]}
    addresses = (ctypes.c_void_p * len(sizes)).from_address(values)
    x, y, z = attributes.get(_CLUSTER_DIMENSION, (1, 1, 1))[:3]
    consents = (ctypes.c_int * _NUM_KERNEL_ATTRIBUTES).from_address(of_kernel)
    most_shared = int(consents[_MOST_SHARED])
    return Launch(
        grid=(given.grid.x, given.grid.y, given.grid.z),
        block=(given.block.x, given.block.y, given.block.z),
        cluster=(x, y, z),
        shared_bytes=given.shared_bytes,
        params=tuple(
            ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True)
        ),
        is_dependent=bool(attributes.get(_STREAM_SERIALIZATION, (0,))[0]),
        names_cluster=_CLUSTER_DIMENSION in attributes,
        is_nonportable=consents[_NONPORTABLE] > 0,
        most_shared_bytes=None if most_shared < 0 else most_shared,
    )


def dynamic_shared_bytes(
    library: bytes, symbol: str, arguments: Sequence[object], *, arch: str, num_sms: int, host: Host
) -> int:
    """
    Return the most bytes of dynamic shared memory of a CTA in the launches of one call.

    Args:
        library: The shared library of the artifact. It must be trusted: its code runs.
        symbol: The function.
        arguments: Its arguments; tensors in host memory pass for tensors of the device.
        arch: Target of the GPU that it finds.
        num_sms: SMs of that GPU.
        host: The machine that this runs on.

    Raises:
        EmulationError: The library cannot be loaded, or ends because a call of the runtime returned
            an error.
        UnsupportedPtx: It calls functions, or reads properties of the device, that the stub does
            not have.
        ToolchainError: There is no C compiler to make the stub runtime.
    """
    device = Device(arch=arch, num_sms=num_sms)
    params = _AnyKernel(tuple)  # what kernels are given does not matter
    found = launches(library, symbol, arguments, device=device, params=params, host=host)
    return max((launch.shared_bytes for _, launch in found), default=0)


class _AnyKernel(defaultdict[str, tuple[int, ...]]):
    """A mapping that contains every name of a kernel, each with no parameters."""

    def __contains__(self, name: object) -> bool:
        return True


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
    Write the tensor map that a call of the driver requests.

    Source: CUDA Driver API, section "Tensor Map Object Management": `cuTensorMapEncodeTiled`.

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
    """
    Return in words the first value of a request for a tensor map that is not allowed or not
    emulated; empty if there is none.
    """
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
