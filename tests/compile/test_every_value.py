# SPDX-License-Identifier: Apache-2.0
"""Kernels with every value of every field, compiled and compared: see `tests.cases`."""

from __future__ import annotations

import pytest

import jitgen
from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.plugins import OPERATIONS
from jitgen.verify import verify
from jitgen.verify.verification import samples_of
from tests import needs
from tests.cases import SIZES, Kernel, kernels

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

ON_GPU, ON_CPU = (
    [kernel for op in OPERATIONS.names() for kernel in kernels(op, on_gpu=on_gpu)]
    for on_gpu in (True, False)
)


def _problem(config: Config) -> str | None:
    """Return a small problem as text, of one group or two ranks where there may be no more."""
    text = SIZES.get(config.op)
    is_alone = isinstance(config, GroupedGemmConfig) and config.schedule.one_group
    if getattr(config, "by_flags", False):  # all peers have one inbox, so one peer alone writes
        return text and text.replace("3", "2", 1)
    return "1:8:136:256" if is_alone else text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", ON_GPU, ids=str)
def test_on_an_emulated_gpu(kernel: Kernel) -> None:
    """A small problem with integers and random numbers, in every quick mode: nothing is found."""
    found = verify(*kernel, _problem(kernel.config))

    assert found.is_right, found.to_json()


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", ON_GPU, ids=str)
def test_all_of_it_on_an_emulated_gpu(kernel: Kernel) -> None:
    """With the problems that reach all of the code, those of sm_100a and sm_120a in every mode."""
    found = verify(*kernel, modes="quick" if kernel.arch == Arch.SM_90A else "all")

    assert found.is_right, found.to_json()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", ON_CPU, ids=str)
def test_on_a_cpu(kernel: Kernel) -> None:
    samples, function = samples_of(kernel.config), jitgen.get_kernel(*kernel).function
    sizes = samples.Sizes.parse(SIZES[kernel.config.op], kernel.config)
    for is_exact in (True, False):
        case = samples.make(kernel.config, sizes, is_exact=is_exact)
        function(*case.tensors)

        assert case.wrong() == 0
