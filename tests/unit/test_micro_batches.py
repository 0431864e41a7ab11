# SPDX-License-Identifier: Apache-2.0
"""
Micro-batches of a layer that ranks share: what waits for what on the two streams of a GPU, and how
products and exchanges share its SMs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from jitgen.config import Arch
from jitgen.layer import passes
from jitgen.layer.passes import Passes
from jitgen.ops.dispatch.launch import exchange
from jitgen.ops.launch import AnyLaunch
from jitgen.parallel.wire import Slot
from jitgen.runtime import devices
from jitgen.runtime.session import Session, sparing


class Stream:
    """Stand-in for a CUDA stream: it knows which steps are over before what it is given next."""

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        self.over: set[str] = set()

    def wait_stream(self, other: Stream) -> None:
        self.over |= other.over

    def record_event(self) -> set[str]:
        return {*self.over}

    def wait_event(self, event: set[str]) -> None:
        self.over |= event


class Recorded(Passes):
    """Passes that note, for each step, its stream and what is over before it."""

    def note(self, step: str) -> None:
        stream = CURRENT[-1]
        assert step not in BEFORE
        BEFORE[step] = stream, {*stream.over}
        stream.over.add(step)

    def send(self, number: int, slot: Slot | None = None) -> Any:
        assert slot == Slot(number % 2, is_beside=number > 0)
        self.note(f"dispatch {number}")

    @contextmanager
    def multiplied(self, received: Any, number: int, *, is_beside: bool = False) -> Iterator[Any]:
        assert is_beside
        self.note(f"products {number}")
        yield f"rows {number}"

    def combine(self, rows: Any, number: int, slot: Slot | None = None) -> Any:
        assert rows == f"rows {number}"
        assert slot is not None
        assert slot.pair == number % 2
        self.note(f"combine {number}")


CURRENT: list[Stream] = []
BEFORE: dict[str, tuple[Stream, set[str]]] = {}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_exchanges_overlap_products_and_what_needs_another_waits_for_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, side = Stream(), Stream()
    main.over.add("before")
    CURRENT[:] = [main]
    BEFORE.clear()

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        CURRENT.append(stream)
        yield
        CURRENT.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(passes._Side, "beside", lambda _: nullcontext())
    wire: Any = type("Wire", (), {"stream": side})
    nothing: Any = None
    Recorded(
        nothing, wire, nothing, nothing, nothing, (None, None, None), None, 1, nothing, None
    ).overlapping(count)

    every = {f"{step} {n}" for step in ("dispatch", "products", "combine") for n in range(count)}
    assert BEFORE.keys() == every
    assert main.over == {"before", *every}  # the caller's stream has waited for all
    exchanges = [step for step in BEFORE if not step.startswith("products")]
    assert [step for step, (stream, _) in BEFORE.items() if stream is side] == exchanges
    for number in range(count):
        of_products = BEFORE[f"products {number}"][1]
        assert f"dispatch {number}" in of_products
        assert f"products {number}" in BEFORE[f"combine {number}"][1]
        assert "before" in BEFORE[f"dispatch {number}"][1]
        assert f"dispatch {number + 1}" not in of_products  # it travels at the same time
        assert f"combine {number - 1}" not in of_products
        if number >= 2:  # the same windows, and memory that is free again
            assert f"combine {number - 2}" in of_products
            assert f"combine {number - 2}" in BEFORE[f"dispatch {number}"][1]


def test_products_and_exchanges_beside_them_share_the_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 132 SMs an exchange takes 16 beside products, and may take all where it is alone."""
    gpu = devices.Cuda(arch=Arch.SM_90A, tail=(132,), number=0, is_alone=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "_cuda", lambda *_: gpu)
    session, where = Session(), torch.device("cuda", 0)
    monkeypatch.setattr(Session, "loader", None)
    beside = sparing(session)

    assert devices.find(where, session).tail == (132,)
    assert devices.find(where, beside).tail == (116,)
    assert beside is sparing(session)
    assert beside.memo is not session.memo
    session.forget()
    assert beside is not sparing(session)

    found: list[Any] = []
    launch: Any = AnyLaunch(
        function=lambda *given: found.append(given), tail=gpu.tail, config=None, awaited=None
    )
    link: Any = None
    for is_beside in (False, True):
        exchange(launch, (), gpu, link, is_beside=is_beside)
    assert found == [(132,), (16,)]
