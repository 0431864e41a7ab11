# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.torch.grouped_mm` on the GPU beside torch's own: every form, order, stride and type, forward
and backward, with what a CPU's tests cannot see: alignment, and sizes that no vector divides.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import Tensor

from jitgen.torch import grouped_mm, scaled_grouped_mm
from tests.gpu.configs import ARCH
from tests.grouped_forms import FORMS, ODD, SIZES, GroupedGemmProblem, Kind, kinds

pytestmark = [
    pytest.mark.skipif(ARCH != "sm_90a", reason="operands of 16 bits have kernels for sm_90a"),
    pytest.mark.filterwarnings("ignore"),  # torch's, of its fallback
]

DTYPES = (torch.bfloat16, torch.float16)
KINDS = [
    kind
    for dtype in DTYPES
    for sizes in (SIZES, ODD)
    for kind in kinds(dtype=dtype, sizes=tuple(sizes.items()))
]


def step(
    problem: GroupedGemmProblem, dtype: torch.dtype
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the result, a gradient of it, and those of both operands."""
    leaves = problem.mat_a, problem.mat_b
    found = grouped_mm(*leaves, offs=problem.offs)
    dout = torch.randint(-3, 4, found.shape, device=found.device).to(dtype)
    return found, dout, torch.autograd.grad(found, leaves, dout)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_as_torch_does(kind: Kind) -> None:
    """
    Values and sums of them are exact: the same bits as float64's, and as torch's, which takes no
    rows but of whole 16 bytes on a GPU.
    """
    problem = kind.make("cuda").with_gradients()
    found, dout, gradients = step(problem, kind.dtype)
    if dict(kind.sizes) != ODD:
        theirs = F.grouped_mm(problem.mat_a.detach(), problem.mat_b.detach(), offs=problem.offs)
        assert torch.equal(found, theirs)
    for mine, right in zip(problem.result(found), problem.expected(), strict=True):
        assert torch.equal(mine, right.to(kind.dtype))
    for mine, right in zip(gradients, problem.gradients(dout), strict=True):
        assert torch.equal(mine, right.to(kind.dtype))


@pytest.mark.parametrize(
    "kind", [each for dtype in DTYPES for each in kinds(dtype=dtype, has_rest=True)], ids=str
)
def test_near_what_is_right(kind: Kind) -> None:
    """Random values, an empty group, and a rest without a group."""
    problem = kind.make("cuda", is_exact=False).with_gradients()
    found, dout, gradients = step(problem, kind.dtype)
    eps = torch.finfo(kind.dtype).eps

    for mine, right in zip(problem.result(found), problem.expected(), strict=True):
        assert (mine.detach().double() - right).norm() <= eps * right.norm()
    for mine, right in zip(gradients, problem.gradients(dout), strict=True):
        assert (mine.double() - right).norm() <= eps * right.norm()


@pytest.mark.parametrize("form", FORMS)
def test_a_large_call(form: str) -> None:
    """Of thousands of rows, in the order that is copied, beside torch's own errors."""
    sizes = {"G": 4, "M": 1024, "N": 768, "K": 1536}
    a_last = form == "2d_2d"
    kind = Kind(form, a_last, not a_last, False, torch.bfloat16, tuple(sizes.items()))
    problem = kind.make("cuda", is_exact=False)
    found = grouped_mm(problem.mat_a, problem.mat_b, problem.offs)
    theirs = F.grouped_mm(problem.mat_a, problem.mat_b, offs=problem.offs)
    parts = zip(problem.result(found), problem.result(theirs), problem.expected(), strict=True)
    for mine, other, right in parts:
        assert (mine.double() - right).norm() <= 1.02 * (other.double() - right).norm()


@pytest.mark.parametrize("is_strided", [False, True])
def test_float8_with_groups_along_k(is_strided: bool) -> None:
    """It is widened: as torch's own, as far as that rounds."""
    sizes = {"G": 4, "M": 16, "N": 32, "K": 64}
    kind = Kind("2d_2d", True, False, is_strided, torch.float32, tuple(sizes.items()))
    problem = kind.make("cuda", is_exact=False)
    memory_a = torch.zeros(16, 4 * 64 + 64 * is_strided, device="cuda").to(torch.float8_e4m3fn)
    memory_b = torch.zeros(32, 4 * 64 + 64 * is_strided, device="cuda").to(torch.float8_e4m3fn)
    a, b = memory_a[:, : 4 * 64], memory_b[:, : 4 * 64].t()
    a.copy_(problem.mat_a)
    b.copy_(problem.mat_b)
    of_a = torch.rand(4 * 16, device="cuda") + 0.5
    of_b = torch.rand(4 * 32, device="cuda") + 0.5
    found = scaled_grouped_mm(a, b, of_a, of_b, problem.offs)
    theirs = torch._scaled_grouped_mm(a, b, of_a, of_b, problem.offs, out_dtype=torch.bfloat16)

    assert found.dtype is torch.bfloat16
    assert (found - theirs).norm() <= 0.01 * theirs.norm()
