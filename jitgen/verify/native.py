# SPDX-License-Identifier: Apache-2.0
"""Verifies a kernel for the CPU: it runs on this machine, and its results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jitgen.config import Arch, Config
from jitgen.verify import places
from jitgen.verify.verification import Trial, Verification, samples_of, sizes_of


def verified(
    config: Config, arch: Arch, function: Callable[..., object], problem: object = None
) -> Verification:
    """
    Run a kernel with the problems that are used for emulated kernels, and compare the results.

    Args:
        config: Its config.
        arch: The CPU's target.
        function: The kernel's native function, which checks nothing.
        problem: See `jitgen.verify.verification.verify`.
    """
    trials = tuple(_trials(config, arch, function, problem))
    return Verification(name=config.name(arch), arch=str(arch), trials=trials)


def _trials(
    config: Config, arch: Arch, function: Callable[..., object], problem: object
) -> Iterator[Trial]:
    samples = samples_of(config)
    given = sizes_of(problem, config) if isinstance(problem, str) else problem
    all_sizes = (given,) if given else samples.Sizes.of(config, arch)
    edges = () if given else samples.Sizes.edges(config, arch)
    plans = [
        *((sizes, True, 0) for sizes in all_sizes),
        (all_sizes[min(1, len(all_sizes) - 1)], False, 0),
        *((sizes, bool(seed % 3), seed) for seed, sizes in enumerate(edges, 1)),
    ]
    for sizes, is_exact, seed in plans:
        drawn = {"seed": seed} if seed else {}
        case = samples.make(config, sizes, is_exact=is_exact, **drawn)
        function(*case.tensors)
        frobenius, largest = case.errors()
        yield Trial(
            sizes=sizes,
            values="integers" if is_exact else "random",
            wrong=case.wrong(),
            places=tuple(places.of_case(case, samples.tile(config))),
            frobenius=frobenius,
            largest=largest,
            is_native=True,
        )
