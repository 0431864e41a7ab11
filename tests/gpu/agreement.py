# SPDX-License-Identifier: Apache-2.0
"""
The same calls of every operation on a GPU and in the emulator, compared bit for bit.

    python -m tests.gpu.agreement prewarm ROOT      compile the kernels, on any machine
    python -m tests.gpu.agreement run FILE          run them on a GPU and keep what they wrote
    python -m tests.gpu.agreement compare FILE      run them in the emulator and compare

The problems are those that `jitgen verify` asks of a kernel, with small integers, whose sums are
exact, and with random numbers. JITGEN_GPU_CACHE names the carried cache for `run`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

import jitgen
from jitgen.codegen.render import render
from jitgen.config import Config, Layout
from jitgen.config.grouped_gemm import Operands
from jitgen.config.plugins import OPERATIONS
from jitgen.emulator import Artifact
from jitgen.settings import settings
from jitgen.targets.legality import target
from jitgen.verify.artifacts import compiled
from jitgen.verify.verification import samples_of
from tests.candidates import candidates
from tests.cases import pool
from tests.covering import covering
from tests.gpu.configs import ARCH, OF_OTHER_TYPES

Argument = Tensor | float | None
"""What a kernel takes: a tensor, a number, or None for a tensor that its config does without."""

PER_LAYOUT = 10
"""Grouped GEMMs of the menu, for each layout."""

KEPT_BYTES = 1 << 18
"""Tensors of more bytes are kept as a digest alone: all of them would be a gigabyte."""


class Problem(NamedTuple):
    """One call of one kernel; exact: small integers."""

    config: Config
    sizes: Any
    is_exact: bool

    @property
    def name(self) -> str:
        """Kernel, sizes and values, in words."""
        kind = "exact" if self.is_exact else "random"
        return f"{self.config.name(ARCH)}: {self.sizes}, {kind}"

    def case(self) -> Any:
        """Return the call, with its right results; its tensors are in host memory."""
        return samples_of(self.config).make(self.config, self.sizes, is_exact=self.is_exact)


def configs() -> list[Config]:
    """
    Return kernels of each operation that have between them every value of every field; of the
    grouped GEMM also ten of the menu for each layout, and one for each pair of other types.
    """
    found: dict[Config, None] = {}
    for op in OPERATIONS.names():
        if op in target(ARCH).operations:
            some = covering(pool(ARCH, op), lambda kernel: kernel.values)
            found |= {kernel.config: None for kernel in some}
    for layout in Layout:
        of_menu = candidates(ARCH, layout, Operands())
        found |= {of_menu[index % len(of_menu)]: None for index in range(PER_LAYOUT)}
    return [*(found | dict.fromkeys(OF_OTHER_TYPES))]


def problems() -> Iterator[Problem]:
    """Yield the problems of each kernel, with exact values; the first one with random ones, too."""
    for config in configs():
        all_sizes = samples_of(config).Sizes.of(config, ARCH)
        for number, sizes in enumerate(all_sizes):
            yield Problem(config, sizes, True)
            if number == 0:
                yield Problem(config, sizes, False)


def content(argument: Argument) -> bytes:
    """Return the bytes of a tensor, in the order of its elements, or the text of a number."""
    if not isinstance(argument, Tensor):
        return repr(argument).encode()
    plain = argument.detach().cpu().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.nbytes)


def named(arguments: Sequence[Argument]) -> list[Argument]:
    """Return arguments where an address of one of them is its place, as no two machines agree."""
    place_of = {
        each.data_ptr(): place for place, each in enumerate(arguments) if isinstance(each, Tensor)
    }
    return [
        torch.tensor([place_of[address] for address in each.tolist()])
        if isinstance(each, Tensor) and _leads(each, place_of)
        else each
        for each in arguments
    ]


def _leads(argument: Tensor, place_of: dict[int, int]) -> bool:
    """Return whether a tensor has nothing but addresses of others."""
    return (
        argument.dtype == torch.int64
        and argument.numel() > 0
        and set(argument.flatten().tolist()) <= place_of.keys() - {0}
    )


def on_gpu(arguments: Sequence[Argument]) -> list[Argument]:
    """Return copies on the GPU; addresses of arguments become those of their copies."""
    there = [copy_on_gpu(each) for each in arguments]
    for place, (given, plain) in enumerate(zip(arguments, named(arguments), strict=True)):
        if plain is not given:
            numbers = cast("Tensor", plain).tolist()
            addresses = [cast("Tensor", there[number]).data_ptr() for number in numbers]
            there[place] = torch.tensor(addresses, dtype=torch.int64, device="cuda")
    return there


def digest(arguments: Sequence[Argument]) -> str:
    """Return what tells whether two machines made the same inputs."""
    return hashlib.sha256(b"".join(content(each) for each in named(arguments))).hexdigest()


def copy_on_gpu(argument: Argument) -> Argument:
    """Return a copy on the GPU with the strides of `argument` and what lies between its rows."""
    if not isinstance(argument, Tensor):
        return argument
    layout = argument.storage_offset(), argument.size(), argument.stride()
    empty = torch.empty(0, dtype=argument.dtype, device="cuda")
    storage = cast("torch.UntypedStorage", argument.untyped_storage().cuda())
    return empty.set_(storage, *layout)


class Kept(NamedTuple):
    """What an argument holds after a call; value: of a small tensor alone."""

    digest: str
    value: Tensor | None

    @classmethod
    def of(cls, argument: Argument) -> Kept:
        """Return what `argument`, a number or a tensor anywhere, holds."""
        value = None
        if isinstance(argument, Tensor) and argument.nbytes <= KEPT_BYTES:
            value = argument.cpu()
        return cls(digest([argument]), value)


def prewarm(root: str) -> int:
    """Compile every kernel into the cache `root`."""
    settings.cache_dir = root
    report = jitgen.prewarm(configs(), arch=ARCH)
    print(f"{len(report.rows)} kernels in {root}, {report.wall_s:.0f} s")
    return 0


def run(path: str) -> int:
    """Run every problem on the GPU and keep what its tensors hold then."""
    if cache := os.environ.get("JITGEN_GPU_CACHE"):
        settings.cache_dir, settings.on_miss = cache, "error"
    kept: dict[str, Any] = {}
    for problem in problems():
        given = problem.case().tensors
        print(problem.name, flush=True)  # the last one printed is the one that hangs
        there = on_gpu(given)
        # Not the kernel itself, which refuses what public calls refuse, as no experts of a token.
        jitgen.get_kernel(problem.config, ARCH).function(*there, problem.sizes.num_sms)
        kept[problem.name] = (digest(given), [Kept.of(each) for each in named(there)])
    torch.save(
        {name: (before, [*map(tuple, after)]) for name, (before, after) in kept.items()}, path
    )
    print(f"{len(kept)} calls on {torch.cuda.get_device_name()} in {path}")
    return 0


@cache
def artifact(config: Config) -> Artifact:
    """Return the compiled kernel, as the emulator takes it."""
    return compiled(render(config, ARCH))


def compare(path: str) -> int:
    """Run every problem in the emulator and compare with what the GPU wrote."""
    kept = torch.load(path)
    equal: Counter[tuple[str, bool]] = Counter()
    total: Counter[tuple[str, bool]] = Counter()
    wrong = 0
    for problem in problems():
        case = problem.case()
        given = case.tensors
        before, after = kept[problem.name]
        theirs = [Kept(*each) for each in after]
        kind = problem.config.op, problem.is_exact
        total[kind] += 1
        if before != digest(given):  # torch of another version may draw other random numbers
            wrong += problem.is_exact
            print("other inputs", problem.name, sep="; ", flush=True)
            continue
        report = jitgen.emulate(
            artifact(problem.config),
            *given,
            problem.sizes.num_sms,
            modes="eager",
            num_sms=problem.sizes.num_sms,
            settled=problem.config.settled,
        )
        differing = [
            (number, ours, gpu)
            for number, (ours, gpu) in enumerate(zip(named(given), theirs, strict=True))
            if digest([ours]) != gpu.digest
        ]
        equal[kind] += not differing
        is_exact = problem.is_exact and not all(
            is_rounded(case, ours, gpu) for _, ours, gpu in differing
        )
        is_wrong = (is_exact and bool(differing)) or not report.is_clean
        wrong += is_wrong
        word = "WRONG" if is_wrong else "near" if differing else "equal"
        words = [f"argument {at}: {difference(ours, gpu)}" for at, ours, gpu in differing]
        print(word, problem.name, *words, sep="; ", flush=True)
    for (op, is_exact), count in total.items():
        values = "integers" if is_exact else "random numbers"
        print(f"{op}, {values}: {equal[op, is_exact]} of {count} equal bit for bit")
    return min(wrong, 1)


def is_rounded(case: Any, ours: Argument, theirs: Kept) -> bool:
    """
    Return whether the GPU's result is right within what `jitgen verify` allows it.

    Results of exponentials are rounded even where everything else is exact, as `route`'s weights.
    """
    outputs = [each for each in getattr(case, "outputs", ()) if each.found is ours]
    return (
        bool(outputs)
        and theirs.value is not None
        and not any(bool(each.differ(theirs.value, each.expected).any()) for each in outputs)
    )


def difference(ours: Argument, theirs: Kept) -> str:
    """Return how far two results are apart, in words."""
    if theirs.value is None:
        return "other bytes"
    assert isinstance(ours, Tensor)
    have, want = ours.float(), theirs.value.float()
    is_other = (have != want) & ~(have.isnan() & want.isnan())
    largest = (have - want).abs()[is_other].max() if is_other.any() else torch.zeros(())
    return f"{int(is_other.sum())} of {have.numel()} values, by at most {float(largest):.3g}"


if __name__ == "__main__":
    command, argument = sys.argv[1:]
    sys.exit({"prewarm": prewarm, "run": run, "compare": compare}[command](argument))
