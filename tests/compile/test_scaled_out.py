# SPDX-License-Identifier: Apache-2.0
"""`activation_quantize` and `permute_quantize` into tensors of the caller's: q and its scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.formats.atoms import by_row
from jitgen.formats.protocol import Rows
from jitgen.ops.call import Call
from jitgen.support.moved import DROPPED_IN
from jitgen.verify import device
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

ROWS, COLUMNS = 20, 256
OFFS = int32(9, 20)


def rows(count: int, columns: int) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(0)).bfloat16()


def silu(**options: Any) -> Any:
    return jitgen.activation_quantize(X, offs=OFFS, **options)


def permute(**options: Any) -> Any:
    return jitgen.permute_quantize(
        TOKENS, torch.arange(ROWS, dtype=torch.int32), top_k=2, offs=OFFS, **options
    )


X, TOKENS = rows(ROWS, 2 * COLUMNS), rows(ROWS // 2, COLUMNS)
every = pytest.mark.parametrize("call", [silu, permute])
Given = Callable[..., tuple[Tensor, Tensor]]


def new(call: Given, **options: Any) -> tuple[Tensor, Tensor]:
    """Return tensors for the results of a call, of zeros, laid out as it returns them."""
    q, scale = call(**options)
    return torch.zeros_like(q), torch.empty_strided(scale.shape, scale.stride()).zero_()


def same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> bool:
    q, scale = found
    return torch.equal(q.float(), expected[0].float()) and torch.equal(scale, expected[1])


def unvalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(described: Any, *_: Any) -> None:
        raise AssertionError(f"a call of {described.name} was validated")

    monkeypatch.setattr(Call, "launched", launched)


@every
@pytest.mark.parametrize("form", ["block128", "row"])
class TestBoth:
    def test_results_are_the_callers(
        self, call: Given, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a new call and by a warm one, which validates nothing and tells autograd."""
        expected, out = call(format=form), new(call, format=form)
        for is_warm in (False, True):
            if is_warm:
                unvalidated(monkeypatch)
            for each in out:
                each.untyped_storage().fill_(7)
            versions = [each._version for each in out]
            found = call(format=form, out=out)

            assert all(mine is theirs for mine, theirs in zip(found, out, strict=True))
            assert same(found, expected)
            assert [each._version for each in out] == [version + 1 for version in versions]

    def test_fewer_scales_are_not_written_beyond(self, call: Given, form: str) -> None:
        """Their strides and types are those of a call before, and an entry does not count them."""
        q, scale = new(call, format=form)
        call(format=form, out=(q, scale))
        few = scale[:, :1] if scale.dim() > 1 else scale[:10]
        for _ in range(2):
            with pytest.raises(InputError, match=r"out\[1\]: must have shape"):
                call(format=form, out=(q, few))

    def test_memory_of_another(self, call: Given, form: str) -> None:
        q, scale = new(call, format=form)
        memory = torch.zeros(ROWS * COLUMNS // 4)
        mine = memory.view(torch.float8_e4m3fn).view(ROWS, COLUMNS)
        shared = memory[: 2 * ROWS].as_strided(scale.shape, scale.stride())
        for _ in range(2):
            with pytest.raises(InputError, match=r"out\[0\]: must not share memory with out\[1\]"):
                call(format=form, out=(mine, shared))
        assert same(call(format=form, out=(q, scale)), call(format=form))

    def test_none_is_a_new_scale(self, call: Given, form: str) -> None:
        q, _ = new(call, format=form)
        for _ in range(2):
            found, scale = call(format=form, out=(q, None))

            assert found is q
            assert same((found, scale), call(format=form))


@every
def test_columns_of_a_wider_tensor(call: Given) -> None:
    """As many rows as there is room for: M is contiguous, and strides are multiples of 4."""
    expected, room = call(), torch.zeros(2, 64)
    q, _ = new(call)
    found = call(out=(q, room[:, :ROWS].T))

    assert same(found, expected)
    assert not room[:, ROWS:].any()


@every
def test_on_an_emulated_gpu(call: Given) -> None:
    expected, out = call(), new(call)
    with device("sm_90a", num_sms=1):
        found = call(out=out)

    assert found[1] is out[1]
    assert torch.allclose(found[1], expected[1], rtol=1e-6)
    assert (found[0].float() - expected[0].float()).norm() < 0.01 * expected[0].float().norm()


def of_rows(atoms: Tensor) -> Tensor:
    """Return the scales of all rows as bytes."""
    return by_row(atoms, Rows((ROWS,), len(OFFS), OFFS), COLUMNS // 32).view(torch.uint8)


def test_atoms_on_an_emulated_gpu() -> None:
    with device("sm_90a", num_sms=1):
        expected = permute(format="mxfp8")
        q, scale = (torch.zeros_like(x.view(torch.uint8)).view(x.dtype) for x in expected)
        for _ in range(2):
            found = permute(format="mxfp8", out=(q, scale))

            assert found[1] is scale
            assert torch.equal(q.view(torch.uint8), expected[0].view(torch.uint8))
            assert torch.equal(of_rows(scale), of_rows(expected[1]))
        with pytest.raises(InputError, match=r"out\[1\]: must have shape \(2, 2, 512\)"):
            permute(format="mxfp8", out=(q, scale[:1]))
        moved = torch.zeros(scale.numel() + 8, dtype=torch.uint8)[8:].view(scale.shape)
        with pytest.raises(InputError, match=r"out\[1\]: must start at a multiple of 16 bytes"):
            permute(format="mxfp8", out=(q, moved.view(scale.dtype)))


@every
@pytest.mark.parametrize("form", ["tensor", "none"])
def test_scales_that_no_kernel_writes(call: Given, form: str) -> None:
    given = torch.ones(1) if form == "tensor" else None
    q, _ = call(format=form, global_scale=given)
    for _ in range(2):
        found, scale = call(format=form, global_scale=given, out=(q, None))

        assert found is q
        assert scale is given
        with pytest.raises(InputError, match=r"out\[1\]: must be None, because no scale is writ"):
            call(format=form, global_scale=given, out=(q, torch.ones(1)))


@every
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, s: [q, s], r"out: must be a tuple of q and its scale, .* \(got list\)"),
        (lambda q, s: (q, s, s), r"out: must be two, q and its scale or None \(got 3\)"),
        (lambda q, _: (q,), r"out: must be two, q and its scale or None \(got 1\)"),
        (lambda _, s: (None, s), r"out\[0\]: must be a torch tensor \(got NoneType\)"),
        (lambda q, s: (q[:9], s), r"out\[0\]: must have shape \(20, 256\)"),
        (lambda q, s: (q, s[:9]), r"out\[1\]: must have shape \(20, 2\), for block128 scales"),
        (lambda q, s: (q, s.double()), r"out\[1\]: must be float32"),
        (lambda q, s: (q, s.contiguous()), r"out\[1\]: must lie as new block128 scales do"),
        (lambda q, s: (q, s.to("meta")), r"out\[1\]: must be on cpu, as x is"),
        (lambda q, s: (q, s.clone().requires_grad_()), r"out\[1\]: must not require a gradient"),
        (lambda q, s: (q[:1].expand(20, 256), s), r"out\[0\]: must not overlap itself"),
    ],
)
def test_mistakes_are_told(call: Given, change: Callable[..., Any], words: str) -> None:
    q, scale = new(call)
    for _ in range(2):
        with pytest.raises(InputError, match=words):
            call(out=change(q, scale))
        call(out=(q, scale))


@every
def test_q_alone_is_taken_and_warns(call: Given) -> None:
    q, _ = new(call)
    name = "activation_quantize" if call is silu else "permute_quantize"
    text = rf"out=q of {name} is now out=\(q, scale\); jitgen {DROPPED_IN} drops the old"
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=text) as warned:
            found, scale = call(out=q)

        assert [each.filename for each in warned] == [__file__]
        assert found is q
        assert same((found, scale), call())
