# SPDX-License-Identifier: Apache-2.0
"""Every public call through all that torch's dispatcher would have done: handled, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
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
from jitgen.errors import InputError
from jitgen.ops import guards
from jitgen.ops.dispatcher import do_overlap, reach
from jitgen.runtime.session import current
from jitgen.settings import settings
from tests import needs
from tests.public_calls import CALLS, OF_TORCH, Call

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]

DEVICE = "cpu"
every = pytest.mark.parametrize("call", CALLS, ids=str)
writes = pytest.mark.parametrize("call", [each for each in CALLS if each.written], ids=str)
is_warm = pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])


@pytest.fixture(autouse=True)
def _filled() -> Iterator[None]:
    """Fill new memory, so that rows of no group are the same each time."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def parts(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [part for each in result or () for part in parts(each)]


def same(first: Any, second: Any) -> bool:
    """Say whether two results have the same bits, NaN and other fillings included."""
    pairs = zip(parts(first), parts(second), strict=True)
    return all(
        mine.shape == other.shape
        and torch.equal(
            mine.detach().flatten().clone().view(torch.uint8),
            other.detach().flatten().clone().view(torch.uint8),
        )
        for mine, other in pairs
    )


def right(call: Call) -> Any:
    return call.run(call.tensors(DEVICE))


@contextmanager
def ready(call: Call, is_warm: bool) -> Iterator[None]:
    """Let no call be remembered, or one like this."""
    session = current.get()
    for remembered in (session.memo, session.families, session.chains):
        remembered.clear()
    if is_warm:
        for _ in range(2):
            call.run(call.tensors(DEVICE))
    yield


def refusal(run: Callable[[], Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        run()
    return caught.value


def right_or_refused(call: Call, run: Callable[[], Any], expected: Callable[[], Any]) -> None:
    """Require the right result, or one clear error: torch's own, where its operations serve."""
    errors = (InputError, RuntimeError) if call.by_torch else InputError
    try:
        found = run()
    except errors:
        return
    assert same(found, expected())


def is_float(tensor: Tensor) -> bool:
    return tensor.dtype in {torch.float32, torch.bfloat16}


def test_no_public_function_is_left_out() -> None:
    """A new one must say what it does about all of this: add it to tests/public_calls.py."""
    rooms = {
        "": (jitgen, jitgen.__all__),
        "torch.": (jitgen.torch, jitgen.torch.__all__),
        "quantize.": (quantize, quantize.__all__),
    }
    takes_tensors = {
        f"{prefix}{name}"
        for prefix, (room, names) in rooms.items()
        for name in names
        if inspect.isfunction(getattr(room, name))
        and any(
            word in str(inspect.signature(getattr(room, name)))
            for word in ("Tensor", "PreparedWeights")
        )
    }

    assert takes_tensors == {call.function for call in CALLS} | {f"quantize.{n}" for n in OF_TORCH}


@every
@is_warm
def test_calls_are_right_to_begin_with(call: Call, is_warm: bool) -> None:
    with ready(call, is_warm):
        assert same(right(call), right(call))
        assert all(part.numel() for part in parts(right(call)))


@writes
@is_warm
def test_what_is_written_has_another_version(call: Call, is_warm: bool) -> None:
    """Autograd did not see that a tensor it had saved was written, and gave wrong gradients."""
    tensors = call.tensors(DEVICE)
    before = {name: each._version for name, each in tensors.items()}
    with ready(call, is_warm):
        call.run(tensors)

    for name, each in tensors.items():
        assert (each._version > before[name]) is (name in call.written), name


@every
@is_warm
def test_forward_mode(call: Call, is_warm: bool) -> None:
    """The derivative was lost without a word."""
    for name, each in call.tensors(DEVICE).items():
        if not is_float(each):
            continue
        with ready(call, is_warm), forward_ad.dual_level():
            tensors = call.tensors(DEVICE)
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
    tensors = call.tensors(DEVICE)
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
    for name, each in call.tensors(DEVICE).items():
        if not is_float(each):
            continue
        with ready(call, is_warm):
            tensors = call.tensors(DEVICE)
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
    for name, each in call.tensors(DEVICE).items():
        with ready(call, is_warm):
            if name in {"offs", "m_indices", "masked_m"} and is_warm:
                continue  # integers have no such views but by this private function
            tensors = call.tensors(DEVICE) | {name: torch._neg_view(each)}
            negated = call.tensors(DEVICE)
            right_or_refused(
                call,
                partial(call.run, tensors),
                lambda name=name, negated=negated: call.run(negated | {name: -negated[name]}),
            )


@every
@is_warm
def test_imaginary_parts_of_conjugates(call: Call, is_warm: bool) -> None:
    """The one public way to a lazily negated view, of float32."""
    for name, each in call.tensors(DEVICE).items():
        if each.dtype is not torch.float32:
            continue
        view = torch.complex(each, -each).conj().imag
        dense = view.as_strided(each.shape, each.stride()) if each.numel() == 1 else view
        with ready(call, is_warm):
            tensors = call.tensors(DEVICE) | {name: dense}
            right_or_refused(call, partial(call.run, tensors), partial(right, call))


@every
@is_warm
def test_tensors_of_zeros_without_memory(call: Call, is_warm: bool) -> None:
    for name, each in call.tensors(DEVICE).items():
        if not is_float(each) or name in call.written:
            continue
        with ready(call, is_warm):
            zeros = torch._efficientzerotensor(each.shape, dtype=each.dtype)
            tensors = call.tensors(DEVICE) | {name: zeros}
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
            tensors = call.tensors(DEVICE)
            assert same(call.run(tensors), expected)
            assert same(call.run(call.tensors(DEVICE)), expected)
        assert same(right(call), expected)
        own = call.tensors(DEVICE)
        outside = {name: own[name] if name in call.written else tensors[name] for name in tensors}
        assert same(call.run(outside), expected)


@writes
@is_warm
def test_tensors_of_inference_mode_are_not_written_outside(call: Call, is_warm: bool) -> None:
    """Torch refuses it, whose own operations could not tell autograd."""
    with torch.inference_mode():
        of_inference = call.tensors(DEVICE)
    for name in call.written:
        with ready(call, is_warm):
            tensors = call.tensors(DEVICE) | {name: of_inference[name]}
            assert "inference mode" in str(refusal(lambda tensors=tensors: call.run(tensors)))


@every
@is_warm
@pytest.mark.parametrize(
    "state",
    [
        lambda: torch.autocast(DEVICE, dtype=torch.bfloat16),
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
    tensors = call.tensors(DEVICE)
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
    names = list(call.tensors(DEVICE))

    def run(*values: Tensor) -> Any:
        return parts(call.run(dict(zip(names, values, strict=True))))

    expected = right(call)
    with ready(call, is_warm):
        transformed = torch.func.functionalize(run)
        if call.written:  # functionalize has no rule for operations that write
            with pytest.raises(Exception, match="alias annotations"):
                transformed(*call.tensors(DEVICE).values())
            return
        assert same(transformed(*call.tensors(DEVICE).values()), expected)


@every
@is_warm
def test_fake_and_meta_tensors(call: Call, is_warm: bool) -> None:
    expected = parts(right(call))
    with ready(call, is_warm):
        mode = FakeTensorMode()
        given = {name: mode.from_tensor(each) for name, each in call.tensors(DEVICE).items()}
        with mode:
            found = parts(call.run(given))
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
        on_meta = {name: each.to("meta") for name, each in call.tensors(DEVICE).items()}
        if not call.by_torch:
            assert "must be on" in str(refusal(lambda: call.run(on_meta)))


class Plain(torch.Tensor):
    """A subclass that says nothing to the dispatcher."""


@every
@is_warm
def test_subclasses(call: Call, is_warm: bool) -> None:
    expected = right(call)
    with ready(call, is_warm):
        given = {name: x.as_subclass(Plain) for name, x in call.tensors(DEVICE).items()}
        found = [part.as_subclass(Tensor) for part in parts(call.run(given))]
        assert same(found, expected)


@every
@pytest.mark.parametrize("size", [0, 16], ids=["freed", "made smaller"])
@pytest.mark.parametrize("is_looked_at", [False, True], ids=["new", "JITGEN_CHECK"])
def test_storage_behind_a_tensor(call: Call, size: int, is_looked_at: bool) -> None:
    """Kernels read, and wrote, what lay behind it."""
    for name, each in call.tensors(DEVICE).items():
        if each.nbytes <= size:
            continue
        tensors = call.tensors(DEVICE)
        with ready(call, is_looked_at), settings.scope(check=is_looked_at):
            tensors[name] = tensors[name].clone(memory_format=torch.preserve_format)
            tensors[name].untyped_storage().resize_(size)
            # torch itself refuses to make views of such a tensor.
            with pytest.raises((InputError, RuntimeError), match=r"freed or made|storage of size"):
                call.run(tensors)


def overlapping(out: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in one memory, with the values of `other`: out begins inside of it."""
    step = 16 if reach(other) > 16 else 0
    size = max(reach(other), step + reach(out)) + 64
    memory = torch.zeros(size, dtype=torch.uint8, device=other.device)

    def view(like: Tensor, start: int) -> Tensor:
        dense = memory[start : start + -(-reach(like) // 16) * 16].view(like.dtype)
        return dense.as_strided(like.shape, like.stride(), dense.storage_offset())

    mine = view(other, 0)
    mine.copy_(other)
    return view(out, step), mine


@writes
@pytest.mark.parametrize("is_looked_at", [False, True], ids=["new", "JITGEN_CHECK"])
def test_memory_that_is_read_while_it_is_written(call: Call, is_looked_at: bool) -> None:
    """Only the first operand was looked at; scales, groups and other results were not."""
    for name in call.written:
        for other in call.tensors(DEVICE):
            if other == name:
                continue
            tensors = call.tensors(DEVICE)
            tensors[name], tensors[other] = overlapping(tensors[name], tensors[other])
            assert do_overlap(tensors[name], tensors[other])
            with ready(call, is_looked_at), settings.scope(check=is_looked_at):
                error = refusal(lambda tensors=tensors: call.run(tensors))
            assert "must not share memory" in str(error), (name, other)


@writes
@is_warm
def test_a_tensor_that_is_written_and_read(call: Call, is_warm: bool) -> None:
    """The same tensor as argument and output, which a warm call sees as well."""
    for name in call.written:
        for other, each in call.tensors(DEVICE).items():
            mine = call.tensors(DEVICE)[name]
            is_alike = (each.shape, each.dtype) == (mine.shape, mine.dtype)
            if other == name or not is_alike:
                continue
            with ready(call, is_warm):
                tensors = call.tensors(DEVICE)
                tensors[name] = tensors[other]
                if other in call.in_place:
                    assert same(call.run(tensors), right(call))
                    continue
                refusal(lambda tensors=tensors: call.run(tensors))


@writes
@is_warm
def test_output_that_overlaps_itself(call: Call, is_warm: bool) -> None:
    for name in call.written:
        tensors = call.tensors(DEVICE)
        out = tensors[name]
        if out.dim() == 1:
            continue
        tensors[name] = out[:1].expand(out.shape)
        with ready(call, is_warm):
            error = refusal(lambda tensors=tensors: call.run(tensors))
        assert error.argument.startswith(name.partition("[")[0])


@every
def test_other_layouts(call: Call) -> None:
    for name, each in call.tensors(DEVICE).items():
        if each.dtype is not torch.bfloat16:
            continue
        with ready(call, False):
            tensors = call.tensors(DEVICE) | {name: each.to_sparse()}
            error = refusal(lambda tensors=tensors: call.run(tensors))
            assert "dense" in str(error) or "sparse" in str(error), name


class TestGuards:
    """The same answers from torch's guards and from those in Python."""

    @pytest.fixture(params=["torch", "python"])
    def guard(self, request: pytest.FixtureRequest) -> Any:
        if request.param == "torch":
            return guards.guard
        return lambda tensors, *fixed: guards.InPython(tensors, *fixed).check

    @pytest.fixture
    def pair(self) -> tuple[Tensor, Tensor]:
        return torch.randn(4, 6), torch.randn(3)

    def test_the_same_and_other_sizes(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        fits = guard(pair)
        assert fits(*pair)
        assert fits(torch.randn(5, 6).T, torch.randn(9))
        assert not fits(torch.randn(5, 6, 1), pair[1])

    def test_fixed_sizes(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        fits = guard(pair, (0,), (0,))
        assert fits(torch.randn(4, 6), torch.randn(8))
        assert not fits(torch.randn(6, 4).T, pair[1])
        assert not fits(torch.randn(5, 6), pair[1])
        assert guard(pair, (), (0,))(torch.randn(5, 6), pair[1])
        assert guard(pair, (0,))(torch.randn(6, 4).T, pair[1])

    @pytest.mark.parametrize(
        "change",
        [
            torch._neg_view,
            lambda x: x.bfloat16(),
            lambda x: x.clone().requires_grad_(),
            torch.nn.Parameter,
            lambda x: x.to("meta"),
            lambda x: None,
            lambda x: 3,
            lambda x: x.as_subclass(Plain),
        ],
    )
    def test_other_kinds(
        self, guard: Any, pair: tuple[Tensor, Tensor], change: Callable[[Tensor], Any]
    ) -> None:
        assert not guard(pair)(change(pair[0]), pair[1])

    def test_a_tensor_twice(self, guard: Any) -> None:
        x = torch.randn(3)
        assert not guard((x, x.clone()))(x, x)

    @pytest.mark.parametrize(
        "state",
        [torch.inference_mode, lambda: torch.autocast("cpu")],
        ids=["inference", "autocast"],
    )
    def test_other_states(self, guard: Any, pair: tuple[Tensor, Tensor], state: Any) -> None:
        fits = guard(pair)
        with state():
            assert not fits(*pair)
        assert fits(*pair)

    def test_inside_of_a_transform(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        fits, seen = guard(pair), []
        torch.vmap(lambda x: (seen.append(fits(x, pair[1])), x)[1])(torch.randn(2, 4, 6))
        assert seen == [False]

    def test_of_another_number_of_tensors(self, guard: Any, pair: tuple[Tensor, Tensor]) -> None:
        with suppress(TypeError):
            assert not guard(pair)(pair[0])
