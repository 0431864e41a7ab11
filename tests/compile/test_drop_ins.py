# SPDX-License-Identifier: Apache-2.0
"""`jitgen.torch`: torch's grouped products, beside torch's own and beside float64."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import Tensor
from torch.autograd import forward_ad

import jitgen
from jitgen.errors import InputError
from jitgen.ops.call import Call
from jitgen.support import moved
from jitgen.torch import grouped_mm, scaled_grouped_mm
from jitgen.verify import device
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

G, M, N, K = 3, 24, 40, 64
EIGHT = torch.float8_e4m3fn
KERNELS_OWN = re.compile(r"\b(a_scale|b_scale|alpha|masked_m|dy)\b|, as [ab] |\b[ab]: ")
"""What the calls of kernels call their arguments."""
OFFS = int32(5, 5, 24)
ENDS_OF_N = int32(8, 24, 24)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


FORMS: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
    "2D x 3D": (normal(M, K), normal(G, N, K).mT, OFFS),
    "3D x 3D": (normal(G, M, K), normal(G, N, K).mT, None),
    "3D x 2D": (normal(G, 16, K), normal(M, K).t(), ENDS_OF_N),
    "2D x 2D": (normal(M, 16).t(), normal(M, N), OFFS),
    "2D x 2D, K contiguous": (normal(16, M), normal(M, N), OFFS),
    "square": (normal(M, K), normal(G, K, K).mT, OFFS),
}
form = pytest.mark.parametrize("form", FORMS)


def exact(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None) -> Tensor:
    """The product in float64, group by group."""
    a, b = mat_a.double(), mat_b.double()
    if offs is None:
        return a @ b
    ends = [0, *offs.tolist()]
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, start:end] @ b[start:end] for start, end in pairwise(ends)])
    if a.dim() == 2:
        parts = [a[s:e] @ w for s, e, w in zip(ends, ends[1:], b, strict=False)]
        return torch.cat(parts)
    return torch.cat([x @ b[:, s:e] for s, e, x in zip(ends, ends[1:], a, strict=False)], 1)


@form
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.nightly)]
)
def test_as_torch_does(form: str, dtype: torch.dtype) -> None:
    """Every form, with values that bfloat16 and sums of them hold: the same bits."""
    mat_a, mat_b, offs = FORMS[form]
    mat_a, mat_b = mat_a.round().to(dtype), mat_b.round().to(dtype)
    found = grouped_mm(mat_a, mat_b, offs=offs)

    assert found.dtype is dtype
    expected = torch._grouped_mm(mat_a, mat_b, offs=offs)
    assert torch.equal(found, expected)
    assert torch.equal(found.double(), exact(mat_a, mat_b, offs).to(dtype).double())


@form
def test_near_what_is_right(form: str) -> None:
    """And no farther from it than torch's own."""
    mat_a, mat_b, offs = FORMS[form]
    mat_a, mat_b = mat_a.bfloat16(), mat_b.bfloat16()
    right = exact(mat_a, mat_b, offs)
    mine, other = grouped_mm(mat_a, mat_b, offs), F.grouped_mm(mat_a, mat_b, offs=offs)

    assert (mine.double() - right).norm() <= 1.01 * (other.double() - right).norm()
    single = grouped_mm(mat_a, mat_b, offs, out_dtype=torch.float32)
    assert (single.double() - right).norm() < 1e-5 * right.norm()


@pytest.mark.parametrize("name", ["2D x 3D", "3D x 3D"])
@pytest.mark.parametrize("shape", [(N,), (G, N)], ids=str)
def test_a_bias(name: str, shape: tuple[int, ...]) -> None:
    """Of all groups or of each, in the model's type, which its gradient has as well."""
    mat_a, mat_b, offs = FORMS[name]
    mat_a, mat_b = mat_a.round().bfloat16(), mat_b.round().bfloat16()
    bias = normal(*shape).round().bfloat16().requires_grad_()
    found = grouped_mm(mat_a, mat_b, offs, bias=bias, out_dtype=torch.float32)
    rows = bias.detach().double().expand(G, N)
    counts = torch.full((G,), M) if offs is None else offs.diff(prepend=offs.new_zeros(1))
    added = rows.repeat_interleave(counts, 0).view(found.shape)
    found.sum().backward()  # type: ignore[no-untyped-call]
    of_groups = counts[:, None].expand(G, N)

    assert torch.equal(found.double(), exact(mat_a, mat_b, offs) + added)
    assert bias.grad is not None
    assert bias.grad.dtype is torch.bfloat16
    assert torch.equal(bias.grad, (of_groups if shape == (G, N) else of_groups.sum(0)).bfloat16())


@pytest.mark.parametrize(
    ("mine", "other"),
    [(grouped_mm, F.grouped_mm), (scaled_grouped_mm, F.scaled_grouped_mm)],
)
def test_arguments_are_torchs(mine: Any, other: Any) -> None:
    names = [*inspect.signature(other).parameters]
    if mine is scaled_grouped_mm:
        from jitgen.torch.scaled import _by_recipes

        assert [*inspect.signature(_by_recipes).parameters] == names
        return
    assert [*inspect.signature(mine).parameters] == names


def test_the_private_signature_is_torchs() -> None:
    from jitgen.torch.scaled import _by_scales

    of_torch = [x.name for x in torch.ops.aten._scaled_grouped_mm.default._schema.arguments]
    renamed = [{"self": "mat_a", "mat2": "mat_b"}.get(name, name) for name in of_torch]
    assert [*inspect.signature(_by_scales).parameters] == renamed


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    (
        "2D x 2D with a bias",
        {"mat_a": torch.ones(16, M), "mat_b": torch.ones(M, 32), "bias": torch.ones(32)},
        r"bias: has no kernel for groups along K \(mat_a \(16, 24\) and mat_b \(24, 32\)\)",
    ),
    (
        "2D x 2D of another K",
        {"mat_a": torch.ones(16, M), "mat_b": torch.ones(M + 1, 32)},
        "mat_b: must have K = 24",
    ),
    ("no offs", {"offs": None}, r"offs: is required with a 2D operand \(got mat_a \(24, 64\)"),
    (
        "offs of nothing",
        {"mat_a": torch.ones(G, M, K)},
        r"offs: belongs to 2D operands \(got mat_a \(3, 24, 64\) and mat_b \(3, 64, 40\)",
    ),
    (
        "jitgen's order",
        {"mat_b": torch.ones(G, N, K)},
        r"mat_b: must have K = 64 .*weights \(G, N, K\) are what jitgen.grouped_gemm takes",
    ),
    (
        "another K",
        {"mat_b": torch.ones(G, 32, N)},
        r"mat_b: must have K = 64 in .* \(3, 32, 40\)\)$",
    ),
    ("4D", {"mat_a": torch.ones(1, G, M, K)}, "mat_a: must have 2 or 3 dimensions"),
    ("a list", {"mat_a": [1.0]}, r"mat_a: must be a torch tensor \(got list\)"),
    ("half", {"mat_a": torch.ones(M, K).half()}, "mat_b: must be float16, as mat_a is"),
    ("double", {"mat_a": torch.ones(M, K).double()}, "mat_a: must be bfloat16 or float16 or float"),
    (
        "quantised",
        {"mat_a": torch.ones(M, K).to(torch.float8_e4m3fn)},
        "mat_a: must be .* which has scales: jitgen.torch.scaled_grouped_mm takes them",
    ),
    ("sparse", {"mat_a": torch.ones(M, K).to_sparse()}, "mat_a: must be a dense tensor"),
    ("elsewhere", {"mat_b": torch.ones(G, K, N, device="meta")}, "mat_b: must be on cpu, as mat_a"),
    ("long offs", {"offs": OFFS.long()}, "offs: must be int32"),
    ("few offs", {"offs": OFFS[:2]}, r"offs: must have shape \(3,\)"),
    ("a list of offs", {"offs": [5, 5, 24]}, r"offs: must be a torch tensor \(got list\)"),
    (
        "other matrices",
        {"mat_a": torch.ones(2, M, K), "offs": None},
        r"mat_b: must have G = 2 matrices, as mat_a has \(got mat_a \(2, 24, 64\)",
    ),
    ("no K", {"mat_a": torch.ones(M, 0), "mat_b": torch.ones(G, 0, N)}, "mat_a: must have K of at"),
    ("no N", {"mat_b": torch.ones(G, K, 0)}, "mat_b: must have N of at least 1"),
    ("an integer type", {"out_dtype": torch.int8}, "out_dtype: must be .*, or None"),
    ("a word for a type", {"out_dtype": "float32"}, r"out_dtype: must be .* \(got 'float32'\)"),
    ("a bias of another N", {"bias": torch.ones(7)}, r"bias: must have shape \(40,\) or \(3, 40\)"),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in MISTAKES])
def test_mistakes_are_told(change: dict[str, Any], words: str) -> None:
    """By the names that the caller knows, of which a kernel's call had others."""
    given = {"mat_a": torch.ones(M, K), "mat_b": torch.ones(G, N, K).mT, "offs": OFFS} | change
    with pytest.raises(InputError, match=words) as caught:
        grouped_mm(**given)
    assert caught.value.argument in inspect.signature(grouped_mm).parameters
    assert not KERNELS_OWN.search(str(caught.value))


@pytest.mark.parametrize("form", FORMS)
def test_what_the_target_has_no_kernel_for_is_told_likewise(form: str) -> None:
    """Hopper multiplies no float32: the kernel's call says so of its a, which may be mat_b."""
    mat_a, mat_b, offs = FORMS[form]
    words = r"^mat_[ab]: must be bfloat16 or float16 .*on sm_90a"
    with device("sm_90a", num_sms=1), pytest.raises(InputError, match=words) as caught:
        grouped_mm(mat_a, mat_b, offs)
    assert not KERNELS_OWN.search(str(caught.value))


@form
@pytest.mark.parametrize("name", ["mat_a", "mat_b"])
def test_a_forward_mode_derivative_is_refused_by_the_callers_names(form: str, name: str) -> None:
    """The advice spoke of an argument of the kernel's call."""
    mat_a, mat_b, offs = FORMS[form]
    named = {"mat_a": mat_a.bfloat16(), "mat_b": mat_b.bfloat16()}
    with forward_ad.dual_level():
        named[name] = forward_ad.make_dual(named[name], torch.ones_like(named[name]))
        with pytest.raises(InputError, match=rf"^{name}: .*unpack_dual\({name}\)"):
            grouped_mm(**named, offs=offs)


@form
def test_torch_compile_sees_one_operation(form: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    mat_a, mat_b, offs = FORMS[form]
    mat_a, mat_b = mat_a.bfloat16(), mat_b.bfloat16()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(jitgen.torch.grouped_mm, fullgraph=True, backend=counter)

    assert torch.equal(compiled(mat_a, mat_b, offs), grouped_mm(mat_a, mat_b, offs))
    op = "grouped_gemm_wgrad" if form.startswith("2D x 2D") else "grouped_gemm"
    assert f"jitgen.{op}.default" in str(counter.graphs[0].graph)


@pytest.mark.nightly
def test_importing_the_package_registers_every_operation() -> None:
    """Programs that load an exported graph import nothing else of jitgen's."""
    registered = "torch._C._dispatch_get_registrations_for_dispatch_key('CPU')"
    program = f"import torch, jitgen.torch; print(*{registered})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found = {name for name in done.stdout.split() if name.startswith("jitgen::")}

    names = {name.removeprefix("jitgen::").partition(".")[0] for name in found}
    modules = [module.name for module in pkgutil.walk_packages(jitgen.ops.__path__, "jitgen.ops.")]
    every = [each for name in modules for each in vars(importlib.import_module(name)).values()]
    wanted = {each.name for each in every if isinstance(each, Call)} - {"sort_quantize"}
    assert len(wanted) >= 10
    of_layers = {"moe"}  # a whole layer with gradients, which is a chain of operations
    assert names == wanted | moved.OPERATIONS.keys() | of_layers
