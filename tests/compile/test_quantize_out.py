# SPDX-License-Identifier: Apache-2.0
"""`jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4` into tensors of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.errors import InputError
from jitgen.ops.quantize import call as calling
from jitgen.verify import device
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

X = torch.randn(24, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
OFFS = int32(5, 5, 24)
FUNCTIONS = {"mxfp8": quantize.mxfp8, "mxfp4": quantize.mxfp4, "nvfp4": quantize.nvfp4}
Function = Callable[..., tuple[Tensor, ...]]
function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def zeros(*like: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(x.view(torch.uint8)).view(x.dtype) for x in like)


def same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    pairs = zip(found[:2], expected[:2], strict=True)
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


@function
@pytest.mark.parametrize("offs", [None, OFFS])
def test_results_are_the_callers(function: Function, offs: Tensor | None) -> None:
    expected = function(X, offs=offs)
    out = zeros(*expected[:2])
    for _ in range(2):
        found = function(X, offs=offs, out=out)

        assert found[0] is out[0]
        assert found[1] is out[1]
        assert same(found, expected)


def test_kernels_write_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a warm call does not ask the selector, unless the tensors are others."""
    with device("sm_90a", num_sms=2):
        x = torch.randn(128, 128).bfloat16()  # whole atoms: without padding
        expected = quantize.mxfp8(x)
        out = zeros(*expected)
        quantize.mxfp8(x, out=out)

        with monkeypatch.context() as patch:
            patch.setattr(calling, "CALL", None)  # what would validate a call
            again = zeros(*out)
            quantize.mxfp8(x, out=again)
        assert same(again, expected)
        assert same(out, expected)
        with pytest.raises(InputError, match=r"out\[0\]: must have shape \(128, 128\)"):
            quantize.mxfp8(x, out=(out[0][:20], out[1]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, _: (q,), r"out: must be two tensors, for q and scale \(got tuple\)"),
        (lambda q, _: q, r"out: must be two tensors, for q and scale \(got Tensor\)"),
        (lambda q, s: (q[:20], s), r"out\[0\]: must have shape \(24, 96\), which results have"),
        (lambda q, s: (q, s[:, :0]), r"out\[1\]: must have shape \(1, 1, 512\)"),
        (lambda q, s: (q.view(torch.uint8), s), r"out\[0\]: must be float8_e4m3fn"),
        (lambda q, s: (q, s.view(torch.uint8)), r"out\[1\]: must be float8_e8m0fnu"),
        (lambda q, s: (q.t().contiguous().t(), s), r"out\[0\]: must be contiguous"),
        (lambda q, s: (q, None), r"out\[1\]: must be a torch tensor \(got NoneType\)"),
        (
            lambda _, s: (X.view(torch.float8_e4m3fn).view(-1)[: 24 * 96].view(24, 96), s),
            r"out\[0\]: must not share memory with x",
        ),
    ],
)
def test_mistakes_are_told(change: Callable[[Tensor, Tensor], Any], words: str) -> None:
    q, scale = quantize.mxfp8(X)
    for _ in range(2):
        with pytest.raises(InputError, match=words):
            quantize.mxfp8(X, out=change(q, scale))
