# SPDX-License-Identifier: Apache-2.0
"""
Which kernel serves `activation_quantize`, and what is remembered of it: kernels that are none.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

import jitgen
from jitgen.config import Arch, Config
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.errors import CaptureMiss, KernelMiss
from jitgen.ops.activation_quantize import dispatch
from jitgen.ops.activation_quantize.call import CALL
from jitgen.ops.activation_quantize.dispatch import ActivationQuantize, Launch
from jitgen.ops.activation_quantize.validate import Arguments
from jitgen.ops.launch import Family
from jitgen.runtime import devices
from jitgen.runtime.background import Background
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.session import current

ARCH = Arch.SM_90A
GPU = devices.Cuda(arch=ARCH, tail=(132,), number=0, is_alone=True)
PROBLEM = ActivationQuantizeProblem(layout="ragged", groups=2, m=20, n=256)
CHOSEN, NEAR, FAR = (each.config for each in jitgen.select(PROBLEM, ARCH).candidates)


class Stand:
    """
    A GPU that is none.

    Attributes:
        calls: What was launched: the config, and what its entry got.
        disk: Configs whose kernels are on the disk.
        wanted: What was asked of the background, which does nothing.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Config, tuple[Any, ...]]] = []
        self.disk: list[Config] = []
        self.wanted: list[Config] = []

    def kernel(self, config: Config) -> Kernel:
        return Kernel(
            config=config,
            arch=ARCH,
            key="",
            tier="disk",
            entry=cast(Any, None),
            function=lambda *given: self.calls.append((config, given)),
        )

    def call(self, rows: int = 20, **options: Any) -> Config:
        """Call the operation and return the config that served."""
        x, ends = torch.zeros(rows, 512).bfloat16(), torch.tensor([1, rows], dtype=torch.int32)
        q, scale = jitgen.activation_quantize(x, offs=ends, **options)
        config, given = self.calls[-1]

        assert given[:4] == (x, ends, q, scale)
        assert given[4:] == (132,)
        return config


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    found = Stand()
    loader = current.get().loader
    monkeypatch.setattr(devices, "find", lambda *_: GPU)
    monkeypatch.setattr(Background, "want", lambda _, config, __: found.wanted.append(config))
    monkeypatch.setattr(
        loader,
        "_from_tiers",
        lambda config, *_, **__: found.kernel(config) if config in found.disk else None,
    )
    return found


@pytest.fixture
def falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_ON_MISS", "fallback")


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def test_a_warm_call_makes_no_sizes_of_its_rows_anew(stand: Stand) -> None:
    stand.disk.append(CHOSEN)
    dispatch._rows.cache_clear()
    for rows in (20, 20, 19, 20):
        stand.call(rows)

    found = dispatch._rows.cache_info()
    assert (found.misses, found.hits) == (2, 2)


@pytest.mark.usefixtures("falls_back")
class TestFallback:
    def test_a_neighbour_serves_until_the_choice_arrives(self, stand: Stand) -> None:
        """Warm calls do not ask the selector; once the choice is there, the next call finds it."""
        stand.disk += [FAR, NEAR]
        session = current.get()

        assert [stand.call() for _ in range(3)] == [NEAR] * 3
        assert stand.wanted == [CHOSEN]
        assert [each.awaited for launches in session.memo.values() for each in launches] == [CHOSEN]
        assert not session.families, "other numbers of rows have to ask for themselves"
        session._arrived(FAR)
        assert session.memo, "another kernel arrived"
        stand.disk.append(CHOSEN)
        session._arrived(CHOSEN)
        assert not session.memo
        assert stand.call() == CHOSEN
        assert stand.call(rows=19) == CHOSEN
        assert len(session.memo) == 2
        assert len(session.families) == 1

    def test_a_forced_config_is_never_replaced(self, stand: Stand) -> None:
        stand.disk.append(NEAR)
        jitgen.freeze()

        assert stand.call() == NEAR
        assert not stand.wanted, "a frozen process compiles nowhere"
        with pytest.raises(KernelMiss, match="frozen"):
            stand.call(config=CHOSEN)

    @pytest.mark.usefixtures("capture")
    def test_while_a_graph_is_captured(self, stand: Stand) -> None:
        """Only what was served before can serve: the first launch of any other allocates."""
        stand.disk += [CHOSEN, NEAR]
        with pytest.raises(CaptureMiss, match="before the capture"):
            stand.call()
        current.get().loader._kernels[FAR, ARCH] = stand.kernel(FAR)

        assert stand.call() == FAR


@pytest.mark.parametrize(("setting", "word"), [("error", "JITGEN_ON_MISS=error"), ("compile", "")])
def test_on_miss(stand: Stand, monkeypatch: pytest.MonkeyPatch, setting: str, word: str) -> None:
    """A neighbour serves under `fallback` alone; else the choice does, or nothing."""
    monkeypatch.setenv("JITGEN_ON_MISS", setting)
    stand.disk.append(NEAR)
    if word:
        with pytest.raises(KernelMiss, match=word) as caught:
            stand.call()
        assert caught.value.kernel == CHOSEN.name(ARCH)
    stand.disk.append(CHOSEN)

    assert stand.call() == CHOSEN
    assert not stand.wanted


def test_frozen(stand: Stand) -> None:
    """A kernel that was served goes on serving."""
    stand.disk.append(CHOSEN)
    stand.call()
    stand.disk.clear()
    jitgen.freeze()

    assert stand.call() == CHOSEN
    with pytest.raises(KernelMiss, match="frozen"):
        stand.call(format="row")


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    is_cuda = True


class TestMemo:
    """What the warm path remembers of a launch that awaits another kernel."""

    KEY = ("key",)

    def run(
        self, monkeypatch: pytest.MonkeyPatch, awaited: Config | None, *, arrives: Any = None
    ) -> bool:
        """Return whether a call with this launch is remembered."""
        launch = Launch(
            function=lambda *_: None,
            tail=(),
            config=NEAR,
            awaited=awaited,
            columns=0,
            q_dtype=torch.bfloat16,
            form=None,
        )

        def prepare(*_: object) -> tuple[Launch, Family, int]:
            if arrives is not None:
                current.get()._arrived(arrives)
            return launch, Family(), 0

        current.get().memo.clear()
        monkeypatch.setattr(ActivationQuantize, "prepare", prepare)
        x = torch.empty(0, 2).as_subclass(OnGpu)
        CALL.run(Arguments(x=x, out=cast(Any, (0, None))), self.KEY)
        return self.KEY in current.get().memo

    def test_not_if_it_arrived_since_we_looked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between looking for the kernel and remembering its neighbour, the worker was done."""
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

        assert not self.run(monkeypatch, CHOSEN, arrives=CHOSEN)
        assert self.run(monkeypatch, None, arrives=CHOSEN)
        assert self.run(monkeypatch, CHOSEN)

    @pytest.mark.usefixtures("capture")
    def test_not_while_a_graph_is_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not self.run(monkeypatch, CHOSEN)
        assert self.run(monkeypatch, None)
