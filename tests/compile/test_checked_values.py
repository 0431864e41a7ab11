# SPDX-License-Identifier: Apache-2.0
"""What calls refuse beyond shapes: values that JITGEN_CHECK looks at, and outputs on inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import jitgen
from jitgen import quantize
from jitgen.errors import InputError
from jitgen.ops.values import check_values
from jitgen.runtime.session import current
from jitgen.settings import settings
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

A, B = torch.ones(24, 64).bfloat16(), torch.ones(3, 40, 64).bfloat16()
MASKED = torch.ones(3, 8, 64).bfloat16()
X = torch.ones(24, 256).bfloat16()


def ids(*runs: tuple[int, int]) -> Tensor:
    return torch.cat([torch.full((count,), group, dtype=torch.int32) for group, count in runs])


PAIRS = {"top_k": 2, "format": "none"}
FEW = torch.ones(3, 64).bfloat16()
ROWS = torch.ones(300, 64).bfloat16()
Call = Callable[[], Any]
WRONG: list[tuple[str, Call, str]] = [
    # These two were not checked: with them kernels read far behind a tensor.
    (
        "a pair that is none",
        lambda: jitgen.permute_quantize(FEW, int32(0, 5, 6, 9, 1, 2), offs=int32(3), **PAIRS),
        r"permutation: must be one of 6 pairs, or -1 .* \(got 6 at \[2\]\)",
    ),
    (
        "a pair that is none, masked",
        lambda: jitgen.permute_quantize(
            FEW, int32(0, 9, 7, 1).view(2, 2), masked_m=int32(1, 2), **PAIRS
        ),
        r"permutation: must be one of 6 pairs, or -1 .* \(got 7 at \[1, 0\]\)",
    ),
    (
        "ends of pairs that fall",
        lambda: jitgen.permute_quantize(FEW, int32(*range(6)), offs=int32(4, 3), **PAIRS),
        r"offs: must not decrease",
    ),
    (
        "a row behind the last",
        lambda: jitgen.combine(FEW, int32(0, 3).view(1, 2), torch.ones(1, 2)),
        r"inverse: must be one of 3 rows of y, or -1 .* \(got 3 at \[0, 1\]\)",
    ),
    (
        "a row before the first",
        lambda: jitgen.combine(FEW, int32(0, -2).view(1, 2), torch.ones(1, 2)),
        r"inverse: must be one of 3 rows of y, or -1 .* \(got -2 at \[0, 1\]\)",
    ),
    (
        "falling ends",
        lambda: jitgen.grouped_gemm(A, B, offs=int32(8, 4, 24)),
        r"offs: must not decrease, .* \(got 4 after 8, of group 1\)",
    ),
    (
        "a start below 0",
        lambda: jitgen.grouped_gemm(A, B, offs=int32(-1, 4, 24)),
        r"offs: must not decrease, .* \(got -1 after 0, of group 0\)",
    ),
    (
        "an end behind the rows",
        lambda: jitgen.grouped_gemm(A, B, offs=int32(8, 25, 25)),
        r"offs: must be at most the 24 rows \(got 25, of group 1\)",
    ),
    (
        "a group that is none",
        lambda: jitgen.grouped_gemm(ROWS, B, m_indices=ids((0, 100), (-1, 28), (3, 172))),
        r"m_indices: must be one of the 3 groups, or -1 for padding \(got 3, of row 128\)",
    ),
    (
        "below padding",
        lambda: jitgen.grouped_gemm(ROWS, B, m_indices=ids((0, 100), (-2, 200))),
        r"m_indices: must be one of the 3 groups, or -1 .* \(got -2, of row 100\)",
    ),
    (
        "two groups in a block",
        lambda: jitgen.grouped_gemm(ROWS, B, m_indices=ids((0, 100), (1, 200))),
        r"start at multiples of 128 rows \(got 0 for row 0, and 1 in rows 0 to 127, too\)",
    ),
    (
        "too many rows",
        lambda: jitgen.grouped_gemm(MASKED, B, masked_m=int32(1, 9, 0)),
        r"masked_m: must be from 0 to the 8 rows of a group \(got 9, of group 1\)",
    ),
    (
        "fewer rows than none",
        lambda: jitgen.grouped_gemm(MASKED, B, masked_m=int32(1, 8, -3)),
        r"masked_m: must be from 0 to the 8 rows of a group \(got -3, of group 2\)",
    ),
    (
        "of the activation",
        lambda: jitgen.activation_quantize(X, offs=int32(8, 4, 24)),
        r"offs: must not decrease",
    ),
    (
        "of the quantiser",
        lambda: quantize.mxfp8(X, offs=int32(8, 4, 24)),
        r"offs: must not decrease",
    ),
]
RIGHT: list[Call] = [
    lambda: jitgen.grouped_gemm(A, B, offs=int32(0, 24, 24)),
    lambda: jitgen.grouped_gemm(A, B, offs=int32(0, 0, 0)),
    lambda: jitgen.grouped_gemm(ROWS, B, m_indices=ids((-1, 5), (2, 120), (-1, 131), (0, 44))),
    lambda: jitgen.grouped_gemm(MASKED, B, masked_m=int32(0, 8, 3)),
    lambda: jitgen.activation_quantize(X, m_indices=ids((1, 3), (5, 20), (-1, 1))),
    lambda: quantize.mxfp8(X),
]


@pytest.mark.parametrize(
    ("call", "words"), [(c, w) for _, c, w in WRONG], ids=[n for n, *_ in WRONG]
)
def test_wrong_values_are_told_each_time(call: Call, words: str) -> None:
    with settings.scope(check=True):
        for _ in range(2):
            with pytest.raises(InputError, match=words):
                call()


@pytest.mark.parametrize("call", RIGHT)
def test_right_values_change_nothing(call: Call) -> None:
    """Not even what calls remember: it is checked calls that are not remembered."""
    call()
    with settings.scope(check=True):
        for _ in range(2):
            call()
            assert not current.get().memo


def test_prepacked_weights_are_checked() -> None:
    b = quantize.prepack_mxfp4_from(torch.ones(3, 64, 96))
    q, scale = quantize.split_bf16(torch.ones(8, 96).bfloat16())
    with settings.scope(check=True), pytest.raises(InputError, match="offs: must be at most the 8"):
        jitgen.grouped_gemm(q, b, scale, offs=int32(1, 2, 9))


def test_calls_from_before_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program asks for it; and in a session of its own, and by the environment."""
    good, bad = int32(8, 8, 24), int32(8, 4, 24)
    jitgen.grouped_gemm(A, B, offs=good)
    jitgen.grouped_gemm(A, B, offs=bad)
    with settings.scope(check=True), pytest.raises(InputError, match="offs: must not decrease"):
        jitgen.grouped_gemm(A, B, offs=bad)
    with jitgen.Session(check=True), pytest.raises(InputError, match="offs: must not decrease"):
        jitgen.grouped_gemm(A, B, offs=bad)
    monkeypatch.setenv("JITGEN_CHECK", "1")
    with jitgen.Session(), pytest.raises(InputError, match="offs: must not decrease"):
        jitgen.grouped_gemm(A, B, offs=bad)


def test_tracers_have_no_values() -> None:
    """A graph's operation looks when it runs."""
    with settings.scope(check=True):
        with FakeTensorMode() as mode:
            a, b, offs = (mode.from_tensor(x) for x in (A, B, int32(8, 4, 24)))
            jitgen.grouped_gemm(a, b, offs=offs)
        with pytest.raises(InputError, match="offs: must not decrease"):
            torch.ops.jitgen.grouped_gemm(A, B, offs=int32(8, 4, 24))


def test_nothing_is_looked_at_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values come when it runs, and waiting would end the capture."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    bad = int32(8, 4, 24).as_subclass(OnGpu)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with settings.scope(check=True):
        check_values(jitgen.Layout.RAGGED, bad, 24)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        with pytest.raises(InputError, match="offs: must not decrease"):
            check_values(jitgen.Layout.RAGGED, bad, 24)


OFFS = int32(8, 8, 24)
SQUARE = torch.ones(3, 64, 64).bfloat16()


class TestOverlap:
    def test_in_place(self) -> None:
        """Refused where shapes are known, too."""
        a = A.clone()
        for _ in range(2):
            with pytest.raises(InputError, match="out: must not share memory with a"):
                jitgen.grouped_gemm(a, SQUARE, offs=OFFS, out=a)
            jitgen.grouped_gemm(a, SQUARE, offs=OFFS, out=torch.empty_like(a))

    @pytest.mark.parametrize("shift", [1, 12, 23])
    def test_rows(self, shift: int) -> None:
        memory = torch.ones(48, 64).bfloat16()
        for a, out in ((0, shift), (shift, 0)):
            with pytest.raises(InputError, match="out: must not share memory with a"):
                jitgen.grouped_gemm(
                    memory[a : a + 24], SQUARE, offs=OFFS, out=memory[out : out + 24]
                )

    def test_columns_side_by_side(self) -> None:
        """One matrix may hold both, until a column is shared."""
        memory = torch.ones(24, 128).bfloat16()
        for a, out in ((0, 64), (64, 0)):
            given, result = memory[:, a : a + 64], memory[:, out : out + 64]
            expected = jitgen.grouped_gemm(given.clone(), SQUARE, offs=OFFS)
            jitgen.grouped_gemm(given, SQUARE, offs=OFFS, out=result)

            assert torch.equal(result, expected)
        with jitgen.Session(), pytest.raises(InputError, match="out: must not share memory with a"):
            jitgen.grouped_gemm(memory[:, :64], SQUARE, offs=OFFS, out=memory[:, 32:96])

    def test_one_behind_the_other(self) -> None:
        memory = torch.ones(48, 64).bfloat16()
        jitgen.grouped_gemm(memory[:24], SQUARE, offs=OFFS, out=memory[24:])
        jitgen.grouped_gemm(memory[24:], SQUARE, offs=OFFS, out=memory[:24])

    def test_other_operations(self) -> None:
        memory = torch.ones(24, 512, dtype=torch.bfloat16)
        out = memory.view(torch.float8_e4m3fn)[:, :256]
        with pytest.raises(InputError, match=r"out\[0\]: must not share memory with x"):
            jitgen.activation_quantize(memory, offs=OFFS, out=(out, None))


def test_torch_order_is_told() -> None:
    """Where K and N differ; where they do not, it cannot be known."""
    with pytest.raises(InputError, match=r"a: must have shape \(24, 40\).*jitgen.torch.grouped_mm"):
        jitgen.grouped_gemm(A, B.mT.contiguous(), offs=OFFS)
