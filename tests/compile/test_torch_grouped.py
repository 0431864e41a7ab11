# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.torch.grouped_mm` beside torch's own, as torch tests that: all forms, all orders of both
operands, strides, types, forward and backward. Of these orders half were refused, as were float16
and gradients of 2D x 2D.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import Tensor

import jitgen
from jitgen.events import events
from jitgen.torch import grouped_mm
from jitgen.verify import device
from tests import needs
from tests.grouped_forms import FORMS, ODD, Kind, kinds

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_AT_NIGHT = [pytest.mark.nightly]
every_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            # All orders of one type at each push, and of the others those among other values.
            marks=[] if dtype is DTYPES[0] or (kind.is_strided and kind.a_last) else _AT_NIGHT,
        )
        for dtype in DTYPES
        for kind in kinds(dtype=dtype)
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was told yet."""
    monkeypatch.setattr("jitgen.events._warned", set())


def backward(out: Tensor, dout: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, leaves, dout)


@every_kind
def test_as_torch_does(kind: Kind) -> None:
    """Values and sums of them are exact: the same bits as torch's, and as float64's."""
    problem = kind.make().with_gradients()
    leaves = problem.mat_a, problem.mat_b
    found = grouped_mm(*leaves, offs=problem.offs)
    theirs = F.grouped_mm(*leaves, offs=problem.offs)
    dout = torch.randint(-3, 4, found.shape).to(kind.dtype)

    assert found.dtype is kind.dtype
    assert found.shape == theirs.shape
    assert torch.equal(found, theirs)
    for mine, right in zip(problem.result(found), problem.expected(), strict=True):
        assert torch.equal(mine, right.to(kind.dtype))
    gradients = backward(found, dout, *leaves), backward(theirs, dout, *leaves)
    for mine, other, right in zip(*gradients, problem.gradients(dout), strict=True):
        assert mine.dtype is kind.dtype
        assert torch.equal(mine, other)
        assert torch.equal(mine, right.to(kind.dtype))


@pytest.mark.parametrize(
    "kind",
    [
        each
        for dtype in DTYPES
        for form in FORMS
        for each in kinds((form,), dtype=dtype, has_rest=True)[1 :: 2 if dtype.itemsize == 2 else 7]
    ],
    ids=str,
)
def test_near_what_is_right(kind: Kind) -> None:
    """
    Random values, an empty group, and a rest without a group: no farther from float64 than torch,
    within the type's steps, and gradients of the rest are 0 whatever the result's is there.
    """
    problem = kind.make(is_exact=False).with_gradients()
    leaves = problem.mat_a, problem.mat_b
    found = grouped_mm(*leaves, offs=problem.offs)
    theirs = F.grouped_mm(*leaves, offs=problem.offs)
    dout = torch.full_like(found, float("nan")) if kind.form in ("2d_3d", "3d_2d") else None
    if dout is None:
        dout = torch.randn(found.shape).to(kind.dtype)
    for part in problem.result(dout):
        part.copy_(torch.randn(part.shape))
    step = torch.finfo(kind.dtype).eps * (4 if kind.dtype is torch.float32 else 1)  # of sums
    parts = zip(problem.result(found), problem.result(theirs), problem.expected(), strict=True)
    for mine, other, right in parts:
        error = (mine.detach().double() - right).norm()
        assert error <= step * right.norm()
        if kind.dtype is not torch.float32:  # of which torch adds up in another order
            assert error <= 1.01 * (other.detach().double() - right).norm()
    for mine, right in zip(
        backward(found, dout, *leaves), problem.gradients(dout.nan_to_num(0.0)), strict=True
    ):
        assert (mine.double() - right).norm() <= step * right.norm()
        assert torch.equal(mine == 0, right.to(kind.dtype) == 0)


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        pytest.param(form, dtype, marks=[] if dtype is DTYPES[number % 3] else _AT_NIGHT)
        for number, form in enumerate(FORMS)
        for dtype in DTYPES
    ],
    ids=str,
)
def test_odd_sizes_in_rows_of_16_bytes(form: str, dtype: torch.dtype) -> None:
    """Of one row, and of sizes that no vector divides, which torch takes in such memory."""
    ones = {"G": 2, "M": 1, "N": 1, "K": 1}
    for sizes, (a_last, b_last) in zip((ODD, ODD, ones), ((1, 1), (0, 0), (1, 1)), strict=True):
        kind = Kind(form, bool(a_last), bool(b_last), True, dtype, tuple(sizes.items()))
        problem = kind.make().with_gradients()
        found = grouped_mm(problem.mat_a, problem.mat_b, problem.offs)
        dout = torch.ones_like(found)

        for mine, right in zip(problem.result(found), problem.expected(), strict=True):
            assert torch.equal(mine, right.to(dtype))
        gradients = backward(found, dout, problem.mat_a, problem.mat_b)
        assert all(
            torch.equal(mine, right.to(dtype))
            for mine, right in zip(gradients, problem.gradients(dout), strict=True)
        )


def test_any_strides_at_all() -> None:
    """Even those that torch refuses, such as a matrix that is spread from one row."""
    mat_a = torch.arange(48.0).view(1, 48).expand(12, 48)[:, ::2]
    mat_b = torch.ones(2, 24, 20)[..., ::2]
    offs = torch.tensor([5, 12], dtype=torch.int32)

    assert torch.equal(grouped_mm(mat_a, mat_b, offs), mat_a @ mat_b[0])


class TestWarnings:
    @pytest.fixture(autouse=True)
    def log(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        with caplog.at_level(logging.WARNING, logger="jitgen"):
            yield

    @pytest.mark.parametrize(
        ("kind", "copied"),
        [
            (Kind("2d_3d"), []),
            (Kind("2d_3d", b_last=False), []),
            (Kind("2d_3d", a_last=False), ["mat_a: K"]),
            (Kind("3d_3d", a_last=False), ["mat_a: K"]),
            (Kind("3d_2d", a_last=False, b_last=False), []),
            (Kind("3d_2d", b_last=True), ["mat_b: K"]),
            (Kind("2d_2d", a_last=False), []),
            (Kind("2d_2d", b_last=False), ["mat_a: M", "mat_b: N"]),
        ],
        ids=str,
    )
    def test_a_copy_is_told_once_with_its_cost(
        self, kind: Kind, copied: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        problem = kind.make()
        for _ in range(2):
            grouped_mm(problem.mat_a, problem.mat_b, problem.offs)
        matrices = {"mat_a": problem.mat_a, "mat_b": problem.mat_b}
        texts = [record.getMessage() for record in caplog.records]

        assert len(texts) == len(copied)
        for text, (name, side) in zip(texts, (each.split(": ") for each in copied), strict=True):
            assert f"grouped_mm copies {name} at each call, " in text
            assert f"{matrices[name].numel() * 2:,} bytes" in text
            assert f"strides {matrices[name].stride()}. {side} contiguous would save" in text

    def test_zeros_behind_sizes_are_told(self, caplog: pytest.LogCaptureFixture) -> None:
        problem = Kind("2d_3d", sizes=tuple(ODD.items())).make()
        with device("sm_90a", num_sms=1):
            grouped_mm(problem.mat_a, problem.mat_b, problem.offs)
        text = " ".join(record.getMessage() for record in caplog.records)

        assert "grouped_mm copies mat_a at each call, and 1,056 bytes here, with zeros" in text
        assert "kernels read whole 16 bytes (got shape (33, 13)). K a multiple of 8 would" in text
        assert "K a multiple of 8, N a multiple of 8 would save that" in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [
        Kind("2d_3d", sizes=tuple(ODD.items()), a_last=False),
        Kind("2d_2d", sizes=tuple(ODD.items()), dtype=torch.float16),
        pytest.param(Kind("3d_2d", sizes=tuple(ODD.items())), marks=_AT_NIGHT),
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for form in FORMS
            for each in (
                *kinds((form,), dtype=torch.float16),
                *kinds((form,), sizes=tuple(ODD.items())),
            )
        ),
    ],
    ids=str,
)
def test_on_an_emulated_gpu(kind: Kind) -> None:
    """Sizes that Hopper's kernels do not take are filled up, forwards and backwards."""
    problem = kind.make().with_gradients()
    with device("sm_90a", num_sms=2):
        found = grouped_mm(problem.mat_a, problem.mat_b, problem.offs)
        dout = torch.randint(-3, 4, found.shape).to(kind.dtype)
        gradients = backward(found, dout, problem.mat_a, problem.mat_b)

    for mine, right in zip(problem.result(found), problem.expected(), strict=True):
        assert torch.equal(mine, right.to(kind.dtype))
    for mine, right in zip(gradients, problem.gradients(dout), strict=True):
        assert torch.equal(mine, right.to(kind.dtype))


def test_memory_that_kernels_cannot_read_is_copied() -> None:
    """A GPU's kernels want addresses of 16 bytes, as torch does but on a CPU."""
    memory = torch.randint(-3, 4, (8 * 72 + 1,)).bfloat16()
    mat_a, mat_b = memory[1:].view(8, 72)[:, :64], torch.ones(1, 64, 16).bfloat16()
    offs = torch.tensor([8], dtype=torch.int32)
    with device("sm_90a", num_sms=1):
        found = grouped_mm(mat_a, mat_b, offs)

    assert torch.equal(found, F.grouped_mm(mat_a.contiguous(), mat_b, offs=offs))


@pytest.mark.parametrize(
    "kind",
    [
        *(Kind(form, a_last=False, b_last=form == "2d_2d") for form in FORMS),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in kinds()),
    ],
    ids=str,
)
def test_torch_compile_sees_one_operation(kind: Kind) -> None:
    """With its copies, in one graph, forwards and backwards; nothing is told there."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    problem = kind.make().with_gradients()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(jitgen.torch.grouped_mm, fullgraph=True, backend=counter)
    leaves = problem.mat_a, problem.mat_b
    found = [each(*leaves, offs=problem.offs) for each in (compiled, grouped_mm)]
    dout = torch.randint(-3, 4, found[0].shape).to(kind.dtype)
    gradients = [backward(each, dout, *leaves) for each in found]

    assert counter.frame_count == 1
    assert torch.equal(*found)
    assert all(map(torch.equal, *gradients))


def test_under_torch_func() -> None:
    problem = Kind("2d_2d").make()

    def loss(mat_a: Tensor, mat_b: Tensor) -> Tensor:
        return grouped_mm(mat_a, mat_b, problem.offs).float().square().sum()

    leaves = problem.with_gradients()
    expected = torch.autograd.grad(loss(leaves.mat_a, leaves.mat_b), (leaves.mat_a, leaves.mat_b))
    found = torch.func.grad(loss, argnums=(0, 1))(problem.mat_a, problem.mat_b)
    assert all(map(torch.equal, found, expected))


def test_events_are_those_of_the_kernels() -> None:
    """A readable call is no more than the product: nothing else is compiled for it."""
    problem = Kind("2d_3d").make()
    grouped_mm(problem.mat_a, problem.mat_b, problem.offs)
    before = events.counts()
    grouped_mm(problem.mat_a, problem.mat_b, problem.offs)

    assert events.counts() == before
