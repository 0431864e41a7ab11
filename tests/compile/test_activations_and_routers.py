# SPDX-License-Identifier: Apache-2.0
"""
Every activation and every router with every type, layout and target: one kernel of each, compared.

Problems of integers have the same bits as the reference. Fields that change other things (turns of
gates and ups, rounded scales) take turns from case to case; `tests.compile.test_every_value` has
each of them with every tiling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import jitgen
from jitgen.config import Arch, Layout
from jitgen.config.activation_backward import ActivationBackwardProblem
from jitgen.config.activation_quantize import Activation, ActivationQuantizeProblem
from jitgen.config.format import IN_ROWS
from jitgen.targets import activation_quantize_space, route_space
from jitgen.targets.base import tiled
from jitgen.targets.legality import check, rules
from jitgen.verify import verify
from jitgen.verify.verification import samples_of
from tests import needs
from tests.cases import OWN, SIZES, Kernel

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

ARCHS = [arch for arch in OWN if rules(arch, "activation_quantize")]
GROUPS, ROWS, COLUMNS = map(int, SIZES["activation_quantize"].split(":"))


def first_of(problem: Any, arch: Arch) -> Kernel:
    """Return the kernel that the selector has first among those for a problem."""
    return Kernel(next(iter(rules(arch, problem.op).candidates(problem))), arch)


def activations() -> Iterator[Kernel]:
    """Yield kernels of every activation and its derivatives, and of numbers of each group."""
    kinds = product(Activation, (False, True), IN_ROWS, Layout)
    of = [each for each in kinds if each[0].numbers or not each[1]]
    for number, (activation, per_group, granularity, layout) in enumerate(of):
        kind = activation_quantize_space.legal_kind(
            replace(
                activation_quantize_space.USUAL,
                activation=activation,
                per_group=per_group,
                scale_granularity=granularity,
                layout=layout,
                interleaved=number % 2 == 1,
                power_of_two=number % 3 == 1,
            )
        )
        same = {name: getattr(kind, name) for name in _SAME}
        groups = 1 if layout is Layout.CONTIGUOUS else GROUPS
        sizes = {"groups": groups, "m": ROWS, "n": COLUMNS}
        for arch in ARCHS:
            yield first_of(ActivationQuantizeProblem(**sizes, **same), arch)
            if not per_group and granularity == "none":
                words = {name: same[name] for name in ("layout", "activation", "interleaved")}
                yield first_of(ActivationBackwardProblem(**sizes, **words), arch)


_SAME = ("layout", "scale_granularity", "activation", "interleaved", "power_of_two", "per_group")


def routers() -> Iterator[Kernel]:
    """Yield kernels of every score, with biases, groups, bounds, tables and loads."""
    for kind, arch in product(route_space.kinds(), ARCHS):
        tilings = (each.tiling for each in rules(arch, "route").configs())
        config = next(each for t in tilings if check(each := tiled(kind, t), arch))
        yield Kernel(config, arch)


CASES = [*activations(), *routers()]


def test_the_matrix_is_whole() -> None:
    """New members of an enumeration or a target are in it by themselves; no case is there twice."""
    configs = {kernel.config for kernel in CASES}

    assert len(set(CASES)) == len(CASES)
    assert {kernel.arch for kernel in CASES} == set(ARCHS)
    assert len({arch.is_gpu for arch in ARCHS}) == 2
    assert {each.activation for each in configs if hasattr(each, "activation")} == {*Activation}
    assert {each.scoring for each in configs if hasattr(each, "scoring")} == {
        *route_space.COMPUTED,
        "given",
    }


@pytest.mark.sampled(379)
@pytest.mark.parametrize("kernel", CASES, ids=str)
def test_right(kernel: Kernel) -> None:
    """In the emulator without findings; bits of the reference where problems are exact."""
    config, arch = kernel
    if arch.is_gpu:
        found = verify(config, arch, SIZES[config.op])
        assert found.is_right, found.to_json()
        return
    samples, function = samples_of(config), jitgen.get_kernel(config, arch).function
    sizes = samples.Sizes.parse(SIZES[config.op], config)
    for is_exact in (True, False):
        case = samples.make(config, sizes, is_exact=is_exact)
        function(*case.tensors)

        assert case.wrong() == 0
