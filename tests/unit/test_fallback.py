# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves, with kernels that are none; and what CUDA graphs change about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import CaptureMiss, KernelMiss
from jitgen.ops.grouped_gemm import dispatch
from jitgen.ops.grouped_gemm.call import CALL
from jitgen.ops.grouped_gemm.dispatch import GroupedGemm, Launch
from jitgen.ops.grouped_gemm.validate import Arguments
from jitgen.ops.launch import Family
from jitgen.runtime.background import Background
from jitgen.runtime.fallback import serve
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import current

ARCH = Arch.SM_90A
CHOSEN, NEAR, FAR = (
    GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=64, n=n, k=128)) for n in (64, 128, 192)
)


def kernel(config: GroupedGemmConfig) -> Kernel:
    return Kernel(
        config=config,
        arch=ARCH,
        key="",
        tier="disk",
        entry=cast(Any, None),
        function=lambda *_: None,
    )


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[GroupedGemmConfig]:
    """What was asked of the background, which does nothing."""
    found: list[GroupedGemmConfig] = []
    monkeypatch.setattr(Background, "want", lambda _, config, __: found.append(config))
    return found


@pytest.fixture
def loader(wanted: list[GroupedGemmConfig], cache_root: Path) -> KernelLoader:
    return KernelLoader(Store.open(cache_root))


@pytest.fixture
def disk(loader: KernelLoader, monkeypatch: pytest.MonkeyPatch) -> list[GroupedGemmConfig]:
    """Configs whose kernels are on the disk."""
    found: list[GroupedGemmConfig] = []
    monkeypatch.setattr(
        loader,
        "_from_tiers",
        lambda config, _, **__: kernel(config) if config in found else None,
    )
    return found


def load(loader: KernelLoader, *configs: GroupedGemmConfig) -> None:
    for config in configs:
        loader._kernels[config, ARCH] = kernel(config)


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


class TestServe:
    def test_the_chosen_one(
        self, loader: KernelLoader, disk: list[GroupedGemmConfig], wanted: list[GroupedGemmConfig]
    ) -> None:
        """From the disk too, even where a neighbour is in memory."""
        load(loader, NEAR)
        disk.append(CHOSEN)

        assert serve(loader, CHOSEN, [NEAR, FAR], ARCH).config == CHOSEN
        assert wanted == []

    def test_the_first_neighbour_that_is_compiled(
        self, loader: KernelLoader, disk: list[GroupedGemmConfig], wanted: list[GroupedGemmConfig]
    ) -> None:
        """One on the disk is as good as one in memory."""
        load(loader, FAR)

        assert serve(loader, CHOSEN, [NEAR, FAR], ARCH).config == FAR
        disk.append(NEAR)
        assert serve(loader, CHOSEN, [NEAR, FAR], ARCH).config == NEAR
        assert wanted == [CHOSEN, CHOSEN]

    def test_neighbours_are_looked_at_only_where_they_are_needed(
        self, loader: KernelLoader, disk: list[GroupedGemmConfig]
    ) -> None:
        disk.append(CHOSEN)

        def none() -> Any:
            pytest.fail("the chosen kernel is there")
            yield

        assert serve(loader, CHOSEN, none(), ARCH).config == CHOSEN

    def test_frozen(
        self,
        loader: KernelLoader,
        disk: list[GroupedGemmConfig],
        wanted: list[GroupedGemmConfig],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Nothing is compiled anywhere."""
        loader.freeze()
        with pytest.raises(KernelMiss, match="frozen"):
            serve(loader, CHOSEN, [NEAR], ARCH)
        load(loader, NEAR)

        assert serve(loader, CHOSEN, [NEAR], ARCH).config == NEAR
        assert wanted == []
        assert not caplog.text


@pytest.mark.usefixtures("capture")
class TestCapture:
    def test_only_loaded_kernels_serve(
        self,
        loader: KernelLoader,
        disk: list[GroupedGemmConfig],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Loading would break the graph, so the disk does not count."""
        disk += [CHOSEN, NEAR]
        with pytest.raises(CaptureMiss, match="before the capture"):
            serve(loader, CHOSEN, [NEAR, FAR], ARCH)
        load(loader, FAR)

        assert serve(loader, CHOSEN, [NEAR, FAR], ARCH).config == FAR
        assert not caplog.text

    def test_a_kernel_that_arrived_waits_for_the_end_of_the_capture(
        self, loader: KernelLoader, disk: list[GroupedGemmConfig], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first launch of a kernel allocates, though its library is loaded."""
        load(loader, NEAR)
        loader._arrived[CHOSEN, ARCH] = kernel(CHOSEN)

        assert serve(loader, CHOSEN, [NEAR], ARCH).config == NEAR
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        assert serve(loader, CHOSEN, [NEAR], ARCH).config == CHOSEN


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    is_cuda = True


class TestMemo:
    """What the warm path remembers of a launch that awaits another kernel."""

    KEY = ("key",)

    def launch(self, awaited: GroupedGemmConfig | None, *scales: Any) -> Launch:
        return Launch(
            way=dispatch.ANY,
            function=lambda *_: None,
            tail=(),
            copies_scales=False,
            unit_scales=scales,
            columns=0,
            out_dtype=torch.float32,
            config=NEAR,
            awaited=awaited,
        )

    def run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        awaited: GroupedGemmConfig | None,
        *scales: Any,
        arrives: Any = None,
    ) -> bool:
        """Return whether a call with this launch is remembered."""

        def prepare(*_: object) -> tuple[Launch, Family, int]:
            if arrives is not None:
                current.get()._arrived(arrives)
            return self.launch(awaited, *scales), Family(edges=(0,)), 0

        current.get().memo.clear()
        monkeypatch.setattr(GroupedGemm, "prepare", prepare)
        a = torch.empty(2, 2).as_subclass(OnGpu)
        given = Arguments(a, cast(Any, None), out=cast(Any, 0))
        CALL.run(given, self.KEY)
        return self.KEY in current.get().memo

    @pytest.fixture(autouse=True)
    def no_capture(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def test_until_it_arrives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.run(monkeypatch, CHOSEN)
        current.get()._arrived(FAR)
        assert self.KEY in current.get().memo, "another kernel arrived"
        current.get()._arrived(CHOSEN)
        assert self.KEY not in current.get().memo

    def test_not_if_it_arrived_since_we_looked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between looking for the kernel and remembering its neighbour, the worker was done."""
        assert not self.run(monkeypatch, CHOSEN, arrives=CHOSEN)

    def test_not_while_nothing_can_come(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Where no thread can be started, a call has to ask again. The neighbour used to be remembered
        for good, although the kernel that it stood in for was not compiled.
        """
        with monkeypatch.context() as patch:
            patch.setattr(KernelLoader, "is_stalled", True)
            assert not self.run(monkeypatch, CHOSEN)
            assert self.run(monkeypatch, None)
        assert self.run(monkeypatch, CHOSEN)

    def test_others_are_not_concerned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.run(monkeypatch, None, arrives=CHOSEN)
        current.get().after_fork()
        assert self.KEY in current.get().memo

    def test_not_while_a_graph_is_captured(
        self, monkeypatch: pytest.MonkeyPatch, capture: None
    ) -> None:
        assert not self.run(monkeypatch, CHOSEN)
        assert not self.run(monkeypatch, None, "filled by that graph alone")
        assert self.run(monkeypatch, None)
