# SPDX-License-Identifier: Apache-2.0
"""Every public call through all that torch's dispatcher would have done: handled, or refused."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import jitgen
import jitgen.torch
from jitgen import quantize
from tests import needs, public_calls
from tests.dispatcher import (
    every,
    is_float,
    is_warm,
    parts,
    ready,
    refusal,
    right,
    right_or_refused,
    same,
    writes,
)
from tests.public_calls import CALLS, OF_TORCH, Call

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.usefixtures("shared_cache", "spoilt_memory"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]


def test_no_public_function_is_left_out() -> None:
    """A new one must say what it does about all of this: add it to tests/public_calls.py."""
    modules = {
        "": (jitgen, jitgen.__all__),
        "torch.": (jitgen.torch, jitgen.torch.__all__),
        "quantize.": (quantize, quantize.__all__),
    }
    takes_tensors = {
        f"{prefix}{name}"
        for prefix, (module, names) in modules.items()
        for name in names
        if inspect.isfunction(getattr(module, name))
        and any(
            word in str(inspect.signature(getattr(module, name)))
            for word in ("Tensor", "PrepackedWeights")
        )
    }

    assert takes_tensors == {call.function for call in CALLS} | {f"quantize.{n}" for n in OF_TORCH}


@every
@is_warm
def test_calls_are_right_to_begin_with(call: Call, is_warm: bool) -> None:
    with ready(call, is_warm):
        assert same(right(call), right(call))
        assert all(part.numel() for part in parts(right(call)))


@every
def test_a_second_call_is_warm(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with prepacked weights were not: a guard was asked about tensors in another order."""
    call.run(call.new())

    def launched(described: Any, *_: Any) -> None:
        raise AssertionError(f"{described.name} was prepacked once more")

    monkeypatch.setattr("jitgen.ops.call.Call.launched", launched)
    call.run(call.new())


@every
@is_warm
def test_forward_mode(call: Call, is_warm: bool) -> None:
    """The derivative was lost without a word."""
    for name, each in call.new().items():
        if not is_float(each):
            continue
        with ready(call, is_warm), forward_ad.dual_level():
            tensors = call.new()
            tensors[name] = forward_ad.make_dual(each, torch.ones_like(each))
            if call.by_torch and name not in call.written:
                right_or_refused(call, partial(call.run, tensors), partial(right, call))
                continue
            error = refusal(lambda tensors=tensors: call.run(tensors))
            assert "forward-mode derivative" in str(error), name


@every
@is_warm
def test_jvp(call: Call, is_warm: bool) -> None:
    """torch.func.jvp gave exactly zero."""
    if call.by_torch:
        pytest.skip("torch's operations have one")
    tensors = call.new()
    name, each = next(((n, x) for n, x in tensors.items() if is_float(x)), ("", torch.empty(0)))
    if not name:
        pytest.skip("no tensor of it has a derivative")

    def run(value: Tensor) -> Any:
        return call.run(tensors | {name: value})

    with ready(call, is_warm):
        error = refusal(lambda: torch.func.jvp(run, (each,), (torch.ones_like(each),)))
    assert "forward-mode derivative" in str(error)


@every
@is_warm
def test_reverse_mode(call: Call, is_warm: bool) -> None:
    """What required a gradient was refused by a call that was new, and taken by a warm one."""
    for name, each in call.new().items():
        if not is_float(each):
            continue
        with ready(call, is_warm):
            tensors = call.new()
            tensors[name] = each.requires_grad_()
            if name in call.differentiable:
                sum(part.float().sum() for part in parts(call.run(tensors))).backward()
                assert each.grad is not None
                assert each.grad.any(), name
            elif call.by_torch and name not in call.written:
                right_or_refused(call, partial(call.run, tensors), partial(right, call))
            else:
                error = refusal(lambda tensors=tensors: call.run(tensors))
                assert "must not require a gradient" in str(error), name
            with torch.no_grad():
                assert same(call.run(tensors), right(call)), name


@every
@is_warm
def test_lazily_negated_views(call: Call, is_warm: bool) -> None:
    """Kernels read the memory, in which the sign is not."""
    for name, each in call.new().items():
        with ready(call, is_warm):
            if name in {"offs", "m_indices", "masked_m"} and is_warm:
                continue  # integers have no such views but by this private function
            tensors = call.new() | {name: torch._neg_view(each)}
            negated = call.new()
            right_or_refused(
                call,
                partial(call.run, tensors),
                lambda name=name, negated=negated: call.run(negated | {name: -negated[name]}),
            )


@every
@is_warm
def test_imaginary_parts_of_conjugates(call: Call, is_warm: bool) -> None:
    """The one public way to a lazily negated view, of float32."""
    for name, each in call.new().items():
        if each.dtype is not torch.float32:
            continue
        view = torch.complex(each, -each).conj().imag
        dense = view.as_strided(each.shape, each.stride()) if each.numel() == 1 else view
        with ready(call, is_warm):
            tensors = call.new() | {name: dense}
            right_or_refused(call, partial(call.run, tensors), partial(right, call))


@every
@is_warm
def test_tensors_of_zeros_without_memory(call: Call, is_warm: bool) -> None:
    for name, each in call.new().items():
        if not is_float(each) or name in call.written:
            continue
        with ready(call, is_warm):
            zeros = torch._efficientzerotensor(each.shape, dtype=each.dtype, device=each.device)
            tensors = call.new() | {name: zeros}
            if call.by_torch:
                expected = partial(call.run, tensors | {name: torch.zeros_like(each)})
                right_or_refused(call, partial(call.run, tensors), expected)
                continue
            assert "without memory" in str(refusal(lambda tensors=tensors: call.run(tensors)))


@every
@is_warm
def test_inference_mode(call: Call, is_warm: bool) -> None:
    expected = right(call)
    with ready(call, is_warm):
        with torch.inference_mode():
            tensors = call.new()
            assert same(call.run(tensors), expected)
            assert same(call.run(call.new()), expected)
        assert same(right(call), expected)
        own = call.new()
        outside = {name: own[name] if name in call.written else tensors[name] for name in tensors}
        assert same(call.run(outside), expected)


@writes
@is_warm
def test_tensors_of_inference_mode_are_not_written_outside(call: Call, is_warm: bool) -> None:
    """Torch refuses it, whose own operations could not tell autograd."""
    with torch.inference_mode():
        of_inference = call.new()
    for name in call.written:
        with ready(call, is_warm):
            tensors = call.new() | {name: of_inference[name]}
            assert "inference mode" in str(refusal(lambda tensors=tensors: call.run(tensors)))


@every
@is_warm
@pytest.mark.parametrize(
    "state",
    [
        lambda: torch.autocast(public_calls.DEVICE, dtype=torch.bfloat16),
        torch.no_grad,
        torch.enable_grad,
        nullcontext,
    ],
    ids=["autocast", "no_grad", "enable_grad", "deterministic"],
)
def test_states_that_change_nothing(call: Call, is_warm: bool, state: Any) -> None:
    expected = right(call)
    with ready(call, is_warm), state():
        assert same(right(call), expected)
        assert same(right(call), expected)


@every
@is_warm
def test_vmap(call: Call, is_warm: bool) -> None:
    if call.by_torch:
        pytest.skip("torch's operations are batched by torch")
    tensors = call.new()
    name, each = next(iter(tensors.items()))
    batch = torch.stack((each, each))

    def run(value: Tensor) -> Any:
        return call.run(tensors | {name: value})

    with ready(call, is_warm):
        assert "vmap" in str(refusal(lambda: torch.vmap(run)(batch)))


@every
@is_warm
def test_functionalize(call: Call, is_warm: bool) -> None:
    """The wrappers of functionalize have no memory, and no type of their own."""
    if call.function == "quantize.unpack_mxfp4":
        pytest.skip("weights are an object, whose facts functionalize does not see")
    names = list(call.new())

    def run(*values: Tensor) -> Any:
        return parts(call.run(dict(zip(names, values, strict=True))))

    expected = right(call)
    with ready(call, is_warm):
        transformed = torch.func.functionalize(run)
        if call.written:  # functionalize has no rule for operations that write
            with pytest.raises(Exception, match="alias annotations"):
                transformed(*call.new().values())
            return
        assert same(transformed(*call.new().values()), expected)


@every
@is_warm
def test_fake_and_meta_tensors(call: Call, is_warm: bool) -> None:
    expected = parts(right(call))
    with ready(call, is_warm):
        mode = FakeTensorMode()
        given = {name: mode.from_tensor(each) for name, each in call.new().items()}
        with mode:
            found = parts(call.run(given))
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
        on_meta = {name: each.to("meta") for name, each in call.new().items()}
        if not call.by_torch:
            assert "must be on" in str(refusal(lambda: call.run(on_meta)))


class Plain(torch.Tensor):
    """A subclass that says nothing to the dispatcher."""


@every
@is_warm
def test_subclasses(call: Call, is_warm: bool) -> None:
    expected = right(call)
    with ready(call, is_warm):
        given = {name: x.as_subclass(Plain) for name, x in call.new().items()}
        found = [part.as_subclass(Tensor) for part in parts(call.run(given))]
        assert same(found, expected)


@every
def test_other_layouts(call: Call) -> None:
    for name, each in call.new().items():
        if each.dtype is not torch.bfloat16:
            continue
        with ready(call, False):
            tensors = call.new() | {name: each.to_sparse()}
            error = refusal(lambda tensors=tensors: call.run(tensors))
            assert "dense" in str(error) or "sparse" in str(error), name
