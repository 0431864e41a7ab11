# SPDX-License-Identifier: Apache-2.0
"""
Calls of kernels of any compiler on several devices, as a JSON document describes them.

The document holds kernels in PTX, tensors, windows and calls. It needs no host part and no Python
code. `docs/emulator-devices.md` describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitgen.emulator.api import TIME_LIMIT_S
from jitgen.emulator.devices import DeviceCall, OnDevices, emulate_devices
from jitgen.emulator.formats.tensor_map import BYTES, ELEMENT_TYPES, TensorMap, encode
from jitgen.emulator.host.tensors import BY_NAME, OnGpu, Tensor, differing, filled, made
from jitgen.emulator.host.windows import Window
from jitgen.emulator.machine.devices import MOST_DEVICES
from jitgen.emulator.machine.machine import NUM_SMS, Launch
from jitgen.emulator.modes import Mode
from jitgen.emulator.report import Finding, Report, of_fault
from jitgen.errors import InputError, MachineFault

CONTENTS = ("", "counting", "unknown")
"""The initial values of a tensor: zeros, small numbers, or undefined."""

KEYS = {
    "devices", "kernels", "windows", "tensors", "values", "calls", "replays", "num_sms", "expected",
    "tolerance",
}  # fmt: skip
"""The keys that a document may have."""

_MOST_BYTES = 1 << 26
"""Largest size of a document in bytes; the values of tensors may be part of it."""

_CALL = {
    "kernel", "devices", "grid", "block", "cluster", "shared", "dependent", "stream", "after",
    "arguments",
}  # fmt: skip
_MAP = {"tensor_map", "type", "sizes", "strides", "box", "swizzle"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The result of a document.

    Attributes:
        report: The report of the modes; None if a fault ended one.
        fault: The fault, or the deadlock; None without one.
        wrong: How many values are wrong in each tensor that was expected, by its name, for example
            "out of device 1".
    """

    report: Report | None
    fault: Finding | None
    wrong: Mapping[str, int]

    @property
    def is_right(self) -> bool:
        """Whether no error was found, and all values are those that were expected."""
        is_clean = self.report is not None and self.report.is_clean
        return is_clean and not any(self.wrong.values())

    def to_json(self) -> dict[str, object]:
        """Return the verdict as JSON values."""
        return {
            "right": self.is_right,
            "clean": self.report is not None and self.report.is_clean,
            "fault": None if self.fault is None else self.fault.to_json(),
            "wrong": dict(self.wrong),
            "report": None if self.report is None else self.report.to_json(),
        }

    def __str__(self) -> str:
        """Return the whole verdict as lines of text."""
        lines = [str(one) for one in (self.report, self.fault) if one is not None]
        lines += [f"{name}: {count} wrong values" for name, count in self.wrong.items() if count]
        return "\n".join(lines)


class Document:
    """
    A document that was read.

    Attributes:
        count: Number of devices.
        calls: Calls in the order of the document, one for each device that a call names.
        windows: The windows by name.
        tensors: The tensors by name, one for each device.
        unknown: Names of the tensors whose first contents mean nothing.
    """

    def __init__(self, content: Mapping[str, Any], folder: Path) -> None:
        """
        Read a document; files that it names are relative to `folder`.

        Raises:
            InputError: The document has something that is not allowed. A part of another form may
                also raise AttributeError, KeyError, TypeError or ValueError, which `read_document`
                turns into this error.
            OSError: A file cannot be read.
        """
        _check_names(content, KEYS, "the document")
        self.count = _number(content, "devices", 1, MOST_DEVICES)
        self.replays = _number({"replays": 1} | dict(content), "replays", 1, 1 << 20)
        self.num_sms = _number({"num_sms": NUM_SMS} | dict(content), "num_sms", 1, 1 << 16)
        self.unknown: list[str] = []
        self.tensors: dict[str, list[Tensor]] = {}
        self.windows: dict[str, Window] = {}
        for name, words in content.get("windows", {}).items():
            self.windows[name] = Window(self._make(name, words, content))
            self.tensors[name] = list(self.windows[name].tensors)
        for name, words in content.get("tensors", {}).items():
            self.tensors[name] = self._make(name, words, content)
        _check_names(content.get("values", {}), set(self.tensors), "values")
        self._kernels = {
            name: self._kernel(name, one, folder) for name, one in content["kernels"].items()
        }
        self.calls: list[DeviceCall] = []
        self._numbers: list[dict[int, int]] = []
        for one in content.get("calls", ()):
            calls = self._calls(one)
            self._numbers.append({x.device: len(self.calls) + i for i, x in enumerate(calls)})
            self.calls += calls
        self._tolerance = float(content.get("tolerance", 0))
        self._expected = {
            name: self._each(f"expected {name}", values, self._tensors(name))
            for name, values in content.get("expected", {}).items()
        }

    def run(
        self,
        modes: str | Mode | Sequence[str | Mode] = "quick",
        time_limit_s: float = TIME_LIMIT_S,
    ) -> Verdict:
        """Run the calls and return the verdict, of which a MachineFault is a part."""
        try:
            report = emulate_devices(
                OnDevices(calls=self.calls, windows=self.windows, replays=self.replays),
                modes=modes,
                num_sms=self.num_sms,
                time_limit_s=time_limit_s,
                unknown=self.unknown,
            )
        except MachineFault as fault:
            return Verdict(None, of_fault(fault), {})
        wrong = {
            f"{name} of device {device}": differing(found, wanted, self._tolerance)
            for name, each in self._expected.items()
            for device, (found, wanted) in enumerate(zip(self.tensors[name], each, strict=True))
        }
        return Verdict(report, None, wrong)

    # --- tensors ----------------------------------------------------------------------------------

    def _make(self, name: str, words: str, content: Mapping[str, Any]) -> list[Tensor]:
        """Return a tensor for each device, with its values."""
        if name in self.tensors:
            raise InputError(name, "is the name of a window and of a tensor")
        kind, _, rest = words.partition(":")
        sizes, _, contents = rest.partition(":")
        found = [tensor_of_words(f"{name!r}", kind, sizes, contents) for _ in range(self.count)]
        self.unknown += [name] if contents == "unknown" else []
        values = content.get("values", {})
        if name in values:
            each = self._each(f"values of {name}", values[name], found)
            for tensor, one in zip(found, each, strict=True):
                tensor.copy_(one)
        return found

    def _each(self, what: str, values: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
        """
        Return a tensor of values for each device; `values` is a list for each device, or one list
        for all.
        """
        rows = values if values and isinstance(values[0], list) else [values] * self.count
        if len(rows) != self.count or any(len(row) != like[0].numel() for row in rows):
            raise InputError(
                what, f"must be {like[0].numel()} numbers, for all devices or for each"
            )
        return [filled(row, tensor) for row, tensor in zip(rows, like, strict=True)]

    def _tensors(self, name: str) -> list[Tensor]:
        if name not in self.tensors:
            raise InputError(name, f"is no tensor or window; there are {', '.join(self.tensors)}")
        return self.tensors[name]

    # --- calls ------------------------------------------------------------------------------------

    def _kernel(self, name: str, given: Mapping[str, Any], folder: Path) -> tuple[str, str]:
        """Return the PTX of a kernel, and the name of its entry."""
        _check_names(given, {"ptx", "file", "entry"}, f"kernel {name}")
        if ("ptx" in given) == ("file" in given):
            raise InputError(f"kernel {name}", "must have either ptx or file")
        text = given.get("ptx") or (folder / given["file"]).read_text(encoding="utf-8")
        return text, given.get("entry", "")

    def _calls(self, given: Mapping[str, Any]) -> list[DeviceCall]:
        """Return the calls of one entry of the document, one for each of its devices."""
        _check_names(given, _CALL, "a call")
        if given.get("kernel") not in self._kernels:
            raise InputError("kernel", f"must be one of {', '.join(self._kernels)}")
        text, entry = self._kernels[given["kernel"]]
        launch = Launch(
            grid=_index(given.get("grid", [1])),
            block=_index(given.get("block", [1])),
            cluster=_index(given.get("cluster", [1])),
            names_cluster="cluster" in given,
            shared_bytes=given.get("shared", 0),
            most_shared_bytes=given.get("shared", 0),
            is_nonportable=True,
            is_dependent=bool(given.get("dependent", False)),
        )
        return [
            DeviceCall(
                device=device,
                kernel=text,
                entry=entry,
                launch=launch,
                stream=given.get("stream", 0),
                after=[self._number(other, device) for other in given.get("after", ())],
                arguments=self._arguments(given.get("arguments", ()), device),
            )
            for device in given.get("devices", range(self.count))
        ]

    def _number(self, call: int, device: int) -> int:
        """Return the number in `calls` of an earlier call of the document on a device."""
        if not 0 <= call < len(self._numbers) or device not in self._numbers[call]:
            raise InputError("after", f"must be earlier calls of the device (got {call})")
        return self._numbers[call][device]

    def _arguments(self, given: Sequence[Any], device: int) -> dict[str, object]:
        """Return the arguments of a call on a device, each with a unique name."""
        found: dict[str, object] = {}
        for one in given:
            name, value = self._named(one, device)
            while name in found:
                name += "'"
            found[name] = value
        return found

    def _named(self, given: Any, device: int) -> tuple[str, object]:
        """Return an argument of a call on a device: its name in messages, and its value."""
        words = json.dumps(given)
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return words, given
        if isinstance(given, str):
            if given in _PLACES:
                return given, _PLACES[given](self, device)
            return given, self._tensors(given)[device]
        kind = next((kind for kind in _KINDS if isinstance(given, dict) and kind in given), "")
        if not kind:
            allowed = ", ".join([*_PLACES, *_KINDS])
            raise InputError(f"argument {words}", f"must be a number, a tensor, or of {allowed}")
        return words, _KINDS[kind](self, given, device)

    def window(self, name: str) -> Window:
        """Return the window `name`; raises InputError if there is none."""
        if name not in self.windows:
            raise InputError(name, f"is no window; there are {', '.join(self.windows)}")
        return self.windows[name]

    def seen(self, given: Mapping[str, Any], device: int) -> Tensor | OnGpu:
        """
        Return the buffer of a window as an argument of a call on `device`.

        `given` is ``{"window": NAME, "of": 2}``: "of" is the device whose buffer it is, a text like
        "+1" counts from `device`, and without "of" it is the buffer of `device` itself.
        """
        _check_names(given, {"window", "of"}, "an argument")
        of = given.get("of", device)
        number = device + int(of) if isinstance(of, str) else of
        return self.window(given["window"]).seen(of=number % self.count, on=device)

    def table(self, given: Mapping[str, Any], device: int) -> Tensor:
        """
        Return a tensor with the addresses at which a device sees all buffers; all calls share this
        tensor.
        """
        _check_names(given, {"table"}, "an argument")
        key = f"table of {given['table']}"
        if key not in self.tensors:
            window = self.window(given["table"])
            self.tensors[key] = [window.table(on=on) for on in range(self.count)]
        return self.tensors[key][device]

    def addresses(self, given: Mapping[str, Any], device: int) -> bytes:
        """Return the addresses at which a device sees all buffers, as the bytes of a structure."""
        _check_names(given, {"addresses"}, "an argument")
        window = self.window(given["addresses"])
        found = (window.address(of=of, on=device) for of in range(self.count))
        return b"".join(address.to_bytes(8, "little") for address in found)

    def tensor_map(self, given: Mapping[str, Any], device: int) -> bytes:
        """
        Return the bytes of the tensor map that `given` describes; sizes, strides in bytes and box
        are innermost first.
        """
        _check_names(given, _MAP, "a tensor map")
        _, value = self._named(given["tensor_map"], device)
        address = value.address if isinstance(value, OnGpu) else 0
        if isinstance(value, Tensor):
            address = value.data_ptr()
        elements = {element.name: element for element in ELEMENT_TYPES}
        if given.get("type") not in elements:
            raise InputError("type", f"must be of {', '.join(elements)}")
        made_ = TensorMap(
            address=address,
            element=elements[given["type"]],
            sizes=tuple(given["sizes"]),
            strides=tuple(given.get("strides", ())),
            box=tuple(given["box"]),
            element_strides=(1,) * len(given["sizes"]),
            swizzle=given.get("swizzle", 0),
            fills_nan=False,
            is_interleaved=False,
        )
        if made_.problem:
            raise InputError("tensor_map", f"{made_}: {made_.problem}")
        return encode(made_).ljust(BYTES, b"\0")


_PLACES: dict[str, Callable[[Document, int], int]] = {
    "@device": lambda _, device: device,
    "@devices": lambda document, _: document.count,
}
"""Names of numbers that an argument may be."""

_KINDS: dict[str, Callable[[Document, Mapping[str, Any], int], object]] = {
    "window": Document.seen,
    "table": Document.table,
    "addresses": Document.addresses,
    "tensor_map": Document.tensor_map,
    "bytes": lambda _, given, __: bytes.fromhex(given["bytes"]),
}
"""The kinds of arguments that are objects, by the key that distinguishes them."""


def read_document(path: Path) -> Document:
    """
    Read a document.

    Raises:
        InputError: It is no JSON, or has something that is not understood.
        OSError: A file cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise InputError(path.name, f"is larger than {_MOST_BYTES:,} bytes")
    try:
        return Document(json.loads(text), path.parent)
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(path.name, f"is no JSON: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(path.name, f"is not understood: {error!r}") from error


def tensor_of_words(word: str, kind: str, sizes: str, contents: str) -> Tensor:
    """
    Return the tensor of type `kind`, with `sizes` such as ``100x64`` and `contents` of `CONTENTS`.

    Raises:
        InputError: One of the three is not allowed; messages call the tensor `word`.
    """
    if kind not in BY_NAME:
        raise InputError(word, f"must have a type of {', '.join(BY_NAME)}")
    if not all(size.isdecimal() for size in sizes.split("x")):
        raise InputError(word, "must have sizes like 100x64")
    if contents not in CONTENTS:
        raise InputError(word, f"must hold {' or '.join(CONTENTS[1:])}, or nothing for zeros")
    return made(list(map(int, sizes.split("x"))), kind, counts=contents == "counting")


def _check_names(given: Mapping[str, Any], allowed: set[str], what: str) -> None:
    if strangers := sorted(given.keys() - allowed):
        raise InputError(strangers[0], f"is not known in {what}; allowed: {sorted(allowed)}")


def _number(content: Mapping[str, Any], name: str, low: int, high: int) -> int:
    found = content.get(name)
    if type(found) is not int or not low <= found <= high:
        raise InputError(name, f"must be a number from {low} to {high} (got {found!r})")
    return found


def _index(sizes: Sequence[int]) -> tuple[int, int, int]:
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise InputError("grid, block, cluster", f"must be 1 to 3 numbers from 1 on (got {sizes})")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
