# SPDX-License-Identifier: Apache-2.0
"""
``python -m jitgen.emulator FILE``: runs one launch of a kernel of any compiler, or the calls of
several devices that a JSON document describes.

It finds races, deadlocks, accesses out of bounds and the other mistakes of docs/emulator.md. It
compares the results of the modes with each other, not with right values: `emulate_ptx` leaves them
in tensors, and `jitgen verify FILE` takes cases with expected values.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from jitgen.emulator import NUM_SMS, TIME_LIMIT_S, Launch, emulate_ptx
from jitgen.emulator.document import read_document, tensor_of_words
from jitgen.emulator.host.tensors import Tensor
from jitgen.emulator.report import of_fault
from jitgen.errors import InputError, JitgenError, MachineFault

_CLEAN, _FOUND, _TROUBLE = 0, 1, 2
"""Exit codes: no error found; an error found; the launch could not be run."""

_EPILOG = """\
An ARGUMENT is NAME=VALUE, one for each parameter of the kernel, in their order:
  out=float32:100x64          a pointer to a tensor of that type and shape, filled with zeros
  a=float16:100x64:counting   ... filled with 0, 1, ... 7, 0, 1, ...
  out=int32:100:unknown       ... whose contents mean nothing until the kernel has written them
  n=100, alpha=0.5            a number
A document says all this itself, but for modes and time limit: docs/emulator-devices.md.
Exit code 0: no error was found; 1: one was; 2: the kernel could not be run.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the kernel that the command line `words` names and return the exit code."""
    parser = _parser()
    given = parser.parse_args(words)
    if given.file.suffix == ".json":
        return _run_document(given)
    if given.grid is None or given.block is None:
        parser.error("a kernel needs --grid and --block")
    try:
        arguments, unknown = _arguments(given.arguments)
        report = emulate_ptx(
            given.file.read_text(encoding="utf-8"),
            _launch(given),
            arguments,
            entry=given.entry,
            modes=given.modes,
            num_sms=given.num_sms,
            time_limit_s=given.time_limit,
            unknown=unknown,
        )
    except MachineFault as fault:
        finding = of_fault(fault)
        document = {"clean": False, "fault": finding.to_json()}
        _print(json.dumps(document) if given.json else finding)
        return _FOUND
    except (JitgenError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{given.file}: {error}\n")
        return _TROUBLE
    _print(json.dumps(report.to_json()) if given.json else report)
    return _CLEAN if report.is_clean else _FOUND


def _run_document(given: argparse.Namespace) -> int:
    """Run the calls of a document and return the exit code."""
    try:
        verdict = read_document(given.file).run(given.modes, given.time_limit)
    except (JitgenError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{given.file}: {error}\n")
        return _TROUBLE
    _print(json.dumps(verdict.to_json()) if given.json else verdict)
    return _CLEAN if verdict.is_right else _FOUND


def _print(result: object) -> None:
    sys.stdout.write(f"{result}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jitgen.emulator",
        description="Run one launch of a GPU kernel on the CPU, or the calls of several devices, "
        "and report what is wrong with it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="the PTX of any compiler, or a JSON document")
    add("arguments", nargs="*", metavar="ARGUMENT", help="see below")
    add("--entry", default="", metavar="NAME", help="the kernel, where the file has several")
    add("--grid", type=_index, metavar="X[,Y[,Z]]", help="CTAs of the grid")
    add("--block", type=_index, metavar="X[,Y[,Z]]", help="threads of a CTA")
    add("--cluster", type=_index, metavar="X[,Y[,Z]]", help="CTAs of a cluster")
    add("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory of a CTA")
    add("--modes", default="quick", metavar="MODES", help="quick, all, or names of modes")
    add("--num-sms", type=int, default=NUM_SMS, metavar="N", help="SMs of the GPU")
    add("--time-limit", type=float, default=TIME_LIMIT_S, metavar="S", help="seconds of a mode")
    add("--json", action="store_true", help="print a document")
    return parser


def _launch(given: argparse.Namespace) -> Launch:
    """
    Return the launch that the command line describes, with its cluster size and shared memory
    allowed.
    """
    return Launch(
        grid=given.grid,
        block=given.block,
        cluster=given.cluster or (1, 1, 1),
        shared_bytes=given.shared,
        names_cluster=given.cluster is not None,
        is_nonportable=True,
        most_shared_bytes=given.shared,
    )


def _index(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    if len(numbers) > 3 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be one to three numbers from 1 on")
    return (*numbers, 1, 1, 1)[:3]


def _arguments(words: Sequence[str]) -> tuple[dict[str, Tensor | int | float], list[str]]:
    """Return the arguments by name, and the names of those with unknown contents."""
    found: dict[str, Tensor | int | float] = {}
    unknown = []
    for word in words:
        name, _, value = word.partition("=")
        kind, _, rest = value.partition(":")
        if not name or not value or name in found:
            raise _error(word, "must be NAME=VALUE, each name once")
        if rest:
            sizes, _, contents = rest.partition(":")
            found[name] = tensor_of_words(f"argument {word!r}", kind, sizes, contents)
            unknown += [name] if contents == "unknown" else []
        else:
            found[name] = _number(word, value)
    return found, unknown


def _number(word: str, value: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise _error(word, "must be a number, or TYPE:SIZES for a tensor")


def _error(word: str, rule: str) -> InputError:
    return InputError(f"argument {word!r}", rule)


if __name__ == "__main__":
    sys.exit(main())
