# SPDX-License-Identifier: Apache-2.0
"""The memory between a layer's launches: threads, streams and graphs do not meet in it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import pytest
import torch

import jitgen
from jitgen.layer import workspace as module
from jitgen.layer.workspace import NEW, STREAMS, Workspace
from tests import needs
from tests.crowd import Crowd
from tests.moe_cases import Case, make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]


@pytest.fixture
def case() -> Case:
    return make("bf16")


@pytest.fixture
def memory(case: Case) -> Workspace:
    return Workspace.of(case.config, case.weights, 32)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a test say which stream is the current one."""
    current = [0]
    monkeypatch.setattr(module, "_stream", lambda _device: current[0])
    return current


@pytest.mark.parametrize("form", ["bf16", "block128"])
def test_threads_that_call_one_layer(form: str) -> None:
    """Two threads wrote to one workspace: a fifth of the results was wrong, and nothing said so."""
    found = Crowd(form, "cpu", threads=4).run(1.5)

    assert found["calls"] > 20
    assert not found["wrong calls"]


def test_threads_that_share_memory_between_layers() -> None:
    cases = [make("bf16", seed=seed) for seed in range(3)]
    memory = Workspace.of(cases[0].config, cases[0].weights, 32)
    layers = [jitgen.MoELayer(each.config, each.weights, workspace=memory) for each in cases]
    right = [jitgen.moe(*_as_moe(each), **_named(each)) for each in cases]
    wrong = [0] * len(cases)

    def work(which: int) -> None:
        for _ in range(60):
            found = layers[which](*cases[which].given)
            wrong[which] += not torch.equal(found, right[which])

    threads = [threading.Thread(target=work, args=(which,)) for which in range(len(cases))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert wrong == [0] * len(cases)


def _as_moe(case: Case) -> tuple[torch.Tensor, ...]:
    return case.x, case.weights.w13, case.weights.w2, case.topk_weights, case.topk_ids  # type: ignore[return-value]


def _named(case: Case) -> dict[str, object]:
    return {name: each for name, each in case.named.items() if name not in ("w13", "w2")}


def test_a_call_inside_of_another_has_memory_of_its_own(memory: Workspace) -> None:
    with memory.lease() as first:
        assert first.buffers(4) is not NEW
        with memory.lease() as second:
            assert second.buffers(4) is NEW
    with memory.lease() as again:
        assert again.buffers(4) is first.buffers(4)


def test_a_call_that_fails_gives_the_memory_back(memory: Workspace) -> None:
    with pytest.raises(ZeroDivisionError), memory.lease():
        raise ZeroDivisionError
    with memory.lease() as lease:
        assert lease.buffers(4) is not NEW


def test_each_stream_has_blocks_of_its_own(memory: Workspace, stream: list[int]) -> None:
    """Streams are not ordered: blocks of one are written while another still reads them."""
    places = set()
    for number in (0, 7, 8):
        stream[0] = number
        with memory.lease() as lease:
            place = lease.buffers(4).h
            assert place is not None
            places.add(place.data_ptr())

    assert len(places) == 3
    assert memory.nbytes == 3 * Workspace.nbytes.fget(copy.deepcopy(memory))  # type: ignore[attr-defined]


def test_streams_have_blocks_up_to_a_number(memory: Workspace, stream: list[int]) -> None:
    have = []
    for number in range(STREAMS + 3):
        stream[0] = 100 + number
        with memory.lease() as lease:
            have.append(lease.buffers(4) is not NEW)

    assert sum(have) == STREAMS - 1  # and those of the stream that it was made on


def test_the_stream_that_is_another_one_in_each_thread(
    memory: Workspace, stream: list[int]
) -> None:
    stream[0] = module._PER_THREAD
    with memory.lease() as lease:
        assert lease.buffers(4) is NEW


def test_a_graph_has_memory_of_its_own(
    case: Case, memory: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay wrote to the memory of eager calls, on another stream than theirs."""
    monkeypatch.setattr(Workspace, "_is_capturing", lambda _: True)
    with memory.lease() as lease:
        assert lease.buffers(4) is NEW
    made_then = Workspace.of(case.config, case.weights, 32)

    assert not made_then.nbytes
    monkeypatch.undo()
    with made_then.lease() as lease:
        assert lease.buffers(4) is not NEW


def test_numbers_of_rows_are_made_once_for_all(memory: Workspace) -> None:
    with memory.lease() as lease:
        assert lease.order(2, 3, torch.device("cpu")).tolist() == [[0, 1, 2], [3, 4, 5]]
    memory.number_rows()
    places = set()
    for _ in range(2):
        with memory.lease() as lease:
            order = lease.order(2, 3, torch.device("cpu"))
            places.add(order.data_ptr())
            assert order.tolist() == [[0, 1, 2], [3, 4, 5]]

    assert len(places) == 1


def pickled(layer: jitgen.MoELayer) -> jitgen.MoELayer:
    return pickle.loads(pickle.dumps(layer))  # type: ignore[no-any-return]  # noqa: S301


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_layer_has_memory_of_its_own(
    case: Case, copied: Callable[[jitgen.MoELayer], jitgen.MoELayer]
) -> None:
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=32)
    expected = layer(*case.given)
    other = copied(layer)

    assert torch.equal(other(*case.given), expected)
    assert layer.workspace is not None
    assert other.workspace is not None
    assert other.workspace is not layer.workspace
    assert other.workspace.nbytes == layer.workspace.nbytes
