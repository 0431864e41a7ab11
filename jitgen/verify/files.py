# SPDX-License-Identifier: Apache-2.0
"""
Verifies kernels of users: a file with cases, whose kernels are compiled or given as artifacts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jitgen.config.operation import Result
from jitgen.emulator import (
    TIME_LIMIT_S,
    Artifact,
    Finding,
    Mode,
    is_from_host_part,
    parse_modes,
    source_file,
    target_of,
)
from jitgen.errors import CompileError, ConfigError, Deadlock, JitgenError, MachineFault
from jitgen.support.frozen import frozen
from jitgen.verify import cases, places
from jitgen.verify.cases import STREAM, Case, Parameters
from jitgen.verify.documents import verify_document
from jitgen.verify.emulation import emulate
from jitgen.verify.verification import Trial, Verification, coverage_of, gaps_of


@frozen
class Call:
    """
    A case's name and arguments, which are the problem of its trial.

    Attributes:
        case: Name of the case.
        arguments: Type and sizes of its arguments, as text.
    """

    case: str
    arguments: str

    def __str__(self) -> str:
        """Return the arguments; the trial names the case itself."""
        return self.arguments


@frozen
class Compiled:
    """
    A compiled kernel that the user gives.

    Attributes:
        library: The shared library.
        ptx: Its PTX.
        symbol: The function to call, without the prefix ``__tvm_ffi_``.
    """

    library: Path
    ptx: Path
    symbol: str


@frozen
class _Kernel:
    """
    One kernel, with its results.

    Attributes:
        title: Name of its entry.
        artifact: The compiled kernel.
        cases: Names of its cases.
        trials: The trial of each case.
    """

    title: str
    artifact: Artifact
    cases: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)


def verify_file(
    path: Path | str,
    arch: str = "",
    *,
    compiled: Compiled | None = None,
    modes: str | Mode | Sequence[str | Mode] = "quick",
    time_limit_s: float = TIME_LIMIT_S,
    must_reach_all: bool = False,
) -> list[Verification]:
    """
    Run the cases of a file in the emulator, in every mode, and compare with their expected values.

    This runs the file, and the host part of its kernels: both must be trusted. Results are written
    to the tensors of the cases.

    Args:
        path: A file that defines ``verify_cases()``; see `jitgen.verify.cases.Case`.
        arch: The target, any GPU that compiler and emulator support, such as ``sm_100a``. A
            `compiled` kernel has the target of its PTX.
        compiled: The kernel of all cases; without it each case has an entry, which is compiled.
        modes: See `jitgen.emulate`.
        time_limit_s: Seconds that one mode of one case may take.
        must_reach_all: Whether a synchronisation, copy, matrix or store instruction that no case
            executes makes a kernel wrong.

    Returns:
        A verification for each kernel: for each entry with its types, sizes and constants.

    Raises:
        ConfigError: The file raises, or its cases do not fit its kernels.
        EmulationError: `arch` is unknown, or a kernel cannot be run. A fault of the kernel is part
            of the result.
        ToolchainError: A compiler is missing.
        CompileError: A kernel does not compile.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no file {path}")
    path, chosen = Path(path).resolve(), parse_modes(modes)
    brought = None if compiled is None else _brought(compiled)
    if brought is None:
        target_of(arch)
        _import_compiler()  # before the file does, and in a neutral environment
    kernels: dict[object, _Kernel] = {}
    for number, case in enumerate(cases.load(path)):
        name = case.name or f"case {number}"
        try:
            if brought is None:
                wanted = cases.parameters(case)
                key, called = _key(case, wanted), wanted.called
                if key not in kernels:
                    kernels[key] = _compiled(case, wanted, path, arch)
            else:
                key, called = "", tuple(case.arguments)
                kernels.setdefault(key, brought)
            kernel = kernels[key]
            trial = _trial(kernel.artifact, name, case, called, chosen, time_limit_s)
        except ConfigError as error:
            raise ConfigError(f"{path.name}, {name}: {error}") from error
        kernel.cases.append(name)
        kernel.trials.append(trial)
    return list(_verifications(path, list(kernels.values()), must_reach_all))


def _verifications(
    path: Path, kernels: list[_Kernel], must_reach_all: bool
) -> Iterator[Verification]:
    titles = Counter(kernel.title for kernel in kernels)
    for kernel in kernels:
        which = f" ({', '.join(kernel.cases)})" if titles[kernel.title] > 1 else ""
        coverage = coverage_of(kernel.trials)
        came_to_end = all(trial.report is not None for trial in kernel.trials)
        yield Verification(
            name=f"{path.name}:{kernel.title}{which}",
            arch=kernel.artifact.arch,
            trials=tuple(kernel.trials),
            coverage=coverage,
            gaps=tuple(gaps_of(coverage)) if must_reach_all and came_to_end else (),
        )


def _import_compiler() -> None:
    from jitgen.compile import compiler

    with compiler.neutral_environment():
        compiler.import_compiler()


def _brought(compiled: Compiled) -> _Kernel:
    """
    Read the artifact that the user gives; return its kernel.

    Raises:
        ConfigError: A file cannot be read, or is something else.
    """
    try:
        library, ptx = compiled.library.read_bytes(), compiled.ptx.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the artifact cannot be read: {error}") from error
    artifact = Artifact(library=library, symbol=compiled.symbol, ptx=ptx)
    if not artifact.entries:
        raise ConfigError(f"{compiled.ptx.name} holds no kernel: is it PTX?")
    return _Kernel(title=compiled.symbol, artifact=artifact)


def _compiled(case: Case, wanted: Parameters, path: Path, arch: str) -> _Kernel:
    """Compile the entry of a case; return its kernel."""
    from jitgen.compile import compiler

    given = [compiler.STREAM if x is STREAM else x for x in wanted.compiled.values()]
    name = re.sub(r"\W", "_", f"verified_{path.stem}_{case.title}")
    try:
        library, ptx = compiler.compile_function(case.entry, given, name=name, arch=arch)
    except CompileError as error:
        raise CompileError(f"{path.name}:{case.title}", error.reason) from error
    return _Kernel(
        title=case.title,
        artifact=Artifact(
            library=library,
            symbol=name,
            ptx=ptx,
            source=Path(source_file(ptx)).read_text("utf-8"),  # the file, or one that it imports
        ),
    )


def _key(case: Case, wanted: Parameters) -> object:
    """Return a key that is equal for cases that share a kernel."""
    return id(case.entry), *(
        _signature(value, is_dynamic=name in wanted.called)
        for name, value in wanted.compiled.items()
    )


def _signature(value: object, *, is_dynamic: bool) -> object:
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, (bool, int, float, str, NoneType)):
        return type(value) if is_dynamic else (type(value), value)
    return id(value)


def _trial(
    artifact: Artifact,
    name: str,
    case: Case,
    called: Sequence[str],
    modes: Sequence[Mode],
    time_limit_s: float,
) -> Trial:
    call = Call(case=name, arguments=str(case))
    try:
        report = emulate(
            replace(artifact, names=tuple(called)),
            *(case.arguments[argument] for argument in called),
            modes=modes,
            num_sms=case.num_sms,
            time_limit_s=time_limit_s,
            unknown=case.unknown,
            settled=case.settled,
            explores=True,
        )
    except MachineFault as error:
        kind = "deadlock" if isinstance(error, Deadlock) else "fault"
        return Trial(sizes=call, values=name, fault=Finding(kind=kind, message=str(error)))
    except (TypeError, ValueError, RuntimeError) as error:
        if not is_from_host_part(error):  # the error is not about the arguments
            raise
        words = " ".join(str(error).split())
        raise ConfigError(f"the kernel's host part refuses the arguments: {words}") from error
    results = [result_of(case, argument) for argument in case.expected]
    complaint = _complaint(case)
    frobenius, largest = zip(*map(_errors, results), strict=True) if results else ((0.0,), (0.0,))
    return Trial(
        sizes=call,
        values=name,
        wrong=sum(int(x.is_wrong.sum()) for x in results) + bool(complaint),
        places=(*_places(case, results), *complaint),
        frobenius=max(frobenius),
        largest=max(largest),
        report=report,
    )


def _complaint(case: Case) -> tuple[str, ...]:
    """Return the complaint of the case's own check, in a line; empty if all is right."""
    if case.check is None:
        return ()
    try:
        case.check(case.arguments)
    except AssertionError as error:
        return (f"check: {' '.join(str(error).split()) or 'AssertionError'}",)
    except Exception as error:
        raise ConfigError(f"check raises {type(error).__name__}: {error}") from error
    return ()


def result_of(case: Case, name: str) -> Result:
    """
    Return an argument beside its expected values, as rows of its last dimension that is not 1.
    """
    found, expected = case.arguments[name], case.expected[name].to(case.arguments[name].dtype)
    columns = next((side for side in reversed(found.shape) if side != 1), 1)
    if found.dtype.is_floating_point:
        ours, theirs = (x.to(torch.float64) for x in (found, expected))
        differ = ~torch.isclose(ours, theirs, rtol=case.rtol, atol=case.atol, equal_nan=True)
    else:
        differ = found != expected
    ours, theirs, differ = (
        x.reshape(-1, max(columns, 1)) for x in (found.float(), expected.float(), differ)
    )
    return Result(
        name=name,
        found=ours.numpy(),
        expected=theirs.numpy(),
        is_wrong=differ.numpy(),
        group=np.full(len(ours), places.UNGROUPED),
        row=np.arange(len(ours)),
    )


def _places(case: Case, results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        yield from places.describe(result, case.tile or result.is_wrong.shape)


def _errors(result: Result) -> tuple[float, float]:
    """Return the error in the Frobenius norm, and the largest one, relative; NaN counts as 0."""
    expected = np.nan_to_num(result.expected.astype(np.float64))
    error = np.nan_to_num(result.found.astype(np.float64)) - expected
    size, most = np.linalg.norm(expected), np.abs(expected).max(initial=0.0)
    frobenius = float(np.linalg.norm(error) / size) if size else 0.0
    return frobenius, float(np.abs(error).max(initial=0.0) / most) if most else 0.0


def verify_task(task: dict[str, Any]) -> dict[str, Any]:
    """
    Verify one file, Python or a document of what several devices run, in a worker process.

    Args:
        task: ``file``, ``arch``, ``modes``, ``time_limit_s``, ``must_reach_all``; and ``library``,
            ``ptx`` and ``symbol`` of a compiled kernel, else empty.

    Returns:
        ``{"kernels": [...]}`` with verifications as JSON values, or ``{"error": ...}`` with the
        message of an error that jitgen raised on purpose.
    """
    compiled = None
    if task["library"]:
        library, ptx = Path(task["library"]), Path(task["ptx"])
        compiled = Compiled(library=library, ptx=ptx, symbol=task["symbol"])
    how = {name: task[name] for name in ("modes", "time_limit_s", "must_reach_all")}
    try:
        if Path(task["file"]).suffix == ".json":
            found = [verify_document(task["file"], **how)]
        else:
            found = verify_file(task["file"], task["arch"], compiled=compiled, **how)
    except JitgenError as error:
        return {"error": str(error)}
    return {"kernels": [verification.to_json() for verification in found]}
