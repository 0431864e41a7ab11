# SPDX-License-Identifier: Apache-2.0
"""`jitgen.get_kernel(...)(...)`: kernels of every operation on a cpu, called without their call."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
import torch

import jitgen
from jitgen.config import Config
from jitgen.config.operation import operation
from jitgen.errors import InputError
from jitgen.runtime.kernel import Kernel
from tests import needs
from tests.unit.test_direct import SIZES

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

NAMES = (
    "activation_backward_masked_swiglu_oai_cpu",
    "add_lora_bf16_byrow_cpu",
    "combine_bf16_cpu",
    "grouped_gemm_ragged_f32_f32_tensor_f32_t8x16x128_c1x1_acc1_cpu",
    "grouped_gemm_wgrad_ragged_f32_f32_t64x128x128_c1x1_cpu",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t8x128x128_c1x1_acc1_cpu",
    "permute_quantize_contiguous_block128_gather_cpu",
    "route_given_e32_cpu",
    "activation_quantize_contiguous_block128_swiglu_cpu",
)


def solved(name: str) -> Any:
    config, _ = Config.parse(name)
    samples = importlib.import_module(operation(config.op).samples)
    return samples.make(config, samples.Sizes.parse(SIZES[config.op], config), is_exact=True)


@pytest.mark.parametrize("name", NAMES)
class TestEveryOperation:
    def test_right(self, name: str) -> None:
        case = solved(name)
        jitgen.get_kernel(name)(*case.tensors)

        assert not sum(int(result.is_wrong.sum()) for result in case.results())

    def test_wrong(self, name: str) -> None:
        """What is wrong is told before anything is written."""
        case, kernel = solved(name), jitgen.get_kernel(name)
        first, *others = case.tensors
        with pytest.raises(InputError):
            kernel(first[:, :-1], *others)
        with pytest.raises(InputError, match=f"arguments: must be .* for {name}"):
            kernel()

        assert sum(int(result.is_wrong.sum()) for result in case.results())


def test_more_groups_than_a_kernel_has_room_for() -> None:
    """
    `route_given_e32_cpu` of 512 experts: it counted beyond its scratch memory, and the process died
    of it. So another process does it here.
    """
    program = (
        "import torch, jitgen, jitgen.errors\n"
        "ids = torch.zeros(64, 4, dtype=torch.int32)\n"
        "order = (torch.zeros(n, dtype=torch.int32) for n in (512, 256))\n"
        "kernel = jitgen.get_kernel('route_given_e32_cpu')\n"
        "try:\n"
        "    kernel(ids, *order, torch.zeros_like(ids), 0)\n"
        "except jitgen.errors.InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "config: must be for at least 512 experts (got 32)\n"


def test_what_the_entry_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its own checks say, where ours were silent, is an error of the same kind."""
    case, kernel = solved("combine_bf16_cpu"), jitgen.get_kernel("combine_bf16_cpu")
    monkeypatch.setattr("jitgen.ops.combine.call.CALL.check_direct", lambda *_: None)
    with pytest.raises(InputError, match=r"arguments: do not fit combine_bf16_cpu: .*inverse"):
        kernel(case.tensors[0], case.tensors[1].long(), *case.tensors[2:])


def test_public_calls_do_not_look_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have looked, and launch the function."""

    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Kernel, "__call__", refuse)
    case = solved("route_given_e32_cpu")
    for _ in range(2):
        found = jitgen.sort_pairs(**case.arguments)

    assert torch.equal(found.inverse, case.output("inverse").expected)
