# SPDX-License-Identifier: Apache-2.0
"""Edited kernels in real calls: on cpu, on an emulated Hopper, frozen, captured, and at home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jitgen
from jitgen.cache import Store
from jitgen.codegen.render import render
from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.errors import (
    CaptureMiss,
    CompileError,
    CompileTimeout,
    InputError,
    KernelMiss,
    OverrideError,
    SettingError,
)
from jitgen.plans.rebuild import rebuilt
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.runtime.spec import spec_of
from jitgen.server.entry_store import EntryStore
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Storage
from jitgen.verify import device
from tests import needs
from tests.cli.conftest import Jitgen
from tests.cli.conftest import jitgen as command
from tests.compile.fallback_calls import MANY, NEIGHBOUR, WANTED, await_true, tensors

__all__ = ["command"]

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

F32 = Operands(a_dtype="f32", b_dtype="f32", out_dtype="f32", scale_granularity="tensor")
CONFIG = GroupedGemmConfig(layout="ragged", operands=F32, tile=Tile(m=8, n=32, k=128))
ONCE = "value = tile[m, n] * a_scale[0] * b_scale"
TWICE = f"{ONCE} * 2.0"


PAIRS = torch.tensor([2, 0, 1, 3], dtype=torch.int32)
SOME = torch.arange(128.0).view(2, 64).bfloat16()
OTHERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "route_softmax_f32_e32_cpu": lambda config: (
        jitgen.route(SOME.float()[:, :20], top_k=2, config=config).inverse
    ),
    "permute_quantize_ragged_none_gather_cpu": lambda config: jitgen.permute_quantize(
        SOME, PAIRS, top_k=2, offs=PAIRS[3:] + 1, format="none", config=config
    )[0],
    "combine_bf16_cpu": lambda config: jitgen.combine(
        SOME, PAIRS[1:3].view(1, 2), torch.ones(1, 2), config=config
    ),
    "grouped_gemm_wgrad_ragged_bf16_bf16_t64x128x128_c1x1_cpu": lambda config: (
        jitgen.grouped_gemm_wgrad(SOME, SOME, offs=PAIRS[:1], config=config)
    ),
}


def edited(config: Config, path: Path, before: str, after: str, arch: str = "cpu") -> Override:
    """Return the kernel of `config`, rewritten to `path` with `after` in the place of `before`."""
    text = render(config, arch).text
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), encoding="utf-8")
    return jitgen.override(path)


@pytest.fixture
def doubled(tmp_path: Path) -> Override:
    """A kernel that gives twice the product."""
    return edited(CONFIG, tmp_path / "my.py", ONCE, TWICE)


def product(config: Config | Override | None = None, rows: int = 5) -> tuple[float, bool]:
    """Return how many times the product comes out."""
    a, b, ends, right = tensors(rows)
    out = jitgen.grouped_gemm(a, b, offs=ends, out_dtype=torch.float32, config=config)
    factor = float(out.sum() / right.sum())
    return factor, torch.equal(out, right * factor)


class TestCalls:
    def test_it_serves_who_asks_for_it(self, doubled: Override, tmp_path: Path) -> None:
        """Original and edited kernel in turn, cold and warm, and with other rows."""
        for _ in range(3):
            for rows in (5, 7):
                assert product(doubled, rows) == (2.0, True)
                assert product(CONFIG, rows) == (1.0, True)
        again = edited(CONFIG, tmp_path / "my.py", ONCE, f"{ONCE} * 4.0")

        assert product(again) == (4.0, True)
        assert product(doubled) == (2.0, True)  # what was read stays as it was

    def test_one_that_ends_its_process(self, tmp_path: Path) -> None:
        """``sys.exit()`` in an edited source used to end the program that called it."""
        ends = "import cutlass\nimport sys\nsys.exit(3)\n"
        mine = edited(CONFIG, tmp_path / "my.py", "import cutlass\n", ends)
        with pytest.raises(CompileError, match=r"ends its process: SystemExit: 3 .*kernel\.py:"):
            product(mine)

    def test_one_that_never_ends(self, tmp_path: Path) -> None:
        """In a process of its own it costs the time that a compile may take."""
        mine = edited(
            CONFIG, tmp_path / "my.py", "import cutlass\n", "import cutlass\nwhile 1: 0\n"
        )
        with (
            jitgen.settings.scope(compile="worker", compile_timeout=1.0),
            pytest.raises(CompileTimeout, match=r"too long: .*, 1 s \(JITGEN_COMPILE"),
        ):
            product(mine)

    def test_it_is_kept_under_a_key_of_its_own(self, doubled: Override) -> None:
        original, mine = jitgen.get_kernel(CONFIG, "cpu"), jitgen.get_kernel(doubled)
        entry = current.get().store.read(spec_of(CONFIG, Arch.CPU).key)

        assert mine.key == doubled.spec.key != original.key
        assert (mine.name, mine.config) == (original.name, CONFIG)
        assert TWICE in mine.source
        assert mine.entry.meta.is_edited
        assert entry is not None
        assert TWICE not in entry.source
        assert not entry.meta.is_edited
        current.get().reset()
        assert jitgen.get_kernel(doubled).tier == "disk"

    def test_its_object_outlives_the_memo(self, doubled: Override) -> None:
        """Launches are remembered by the identity of what was asked for: it must not be reused."""
        path = doubled.path
        for _ in range(50):
            assert product(jitgen.override(path)) == (2.0, True)
            assert product(GroupedGemmConfig.from_json(CONFIG.to_json())) == (1.0, True)

    def test_calls_that_it_is_not_for(self, doubled: Override) -> None:
        a, b, ends, _ = tensors(5)

        with pytest.raises(InputError, match="config: must be for ragged, bf16"):
            jitgen.grouped_gemm(a.bfloat16(), b.bfloat16(), offs=ends, config=doubled)
        with pytest.raises(InputError, match=r"jitgen\.override\('my\.py'\)"):
            jitgen.grouped_gemm(a, b, offs=ends, config="my.py")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="must be for sm_90a"):
            jitgen.get_kernel(doubled, "sm_90a")

    @pytest.mark.nightly
    def test_other_operations(self, tmp_path: Path) -> None:
        name = "activation_quantize_contiguous_block128_swiglu_cpu"
        config = Config.parse(name)[0]
        mine = edited(config, tmp_path / "silu.py", "z = gate\n", "z = gate * 2.0\n")
        x = torch.randn(4, 512, dtype=torch.bfloat16)
        indices = torch.zeros(4, dtype=torch.int32)
        gate, up = x.float().chunk(2, -1)
        found = [
            jitgen.activation_quantize(x, m_indices=indices, config=each) for each in (mine, config)
        ]
        values = [q.float() * scale.repeat_interleave(128, 1) for q, scale in found]

        for factor, value in zip((2, 1), values, strict=True):
            right = gate * torch.sigmoid(gate * factor) * up
            torch.testing.assert_close(value, right, rtol=0.1, atol=0.1)
        assert not torch.equal(*values)

    @pytest.mark.nightly
    @pytest.mark.parametrize("name", OTHERS)
    def test_operations_of_a_layer(self, name: str, tmp_path: Path) -> None:
        """These refused what `jitgen.override` returns, and wanted a config."""
        config = Config.parse(name)[0]
        path = tmp_path / "mine.py"
        path.write_text(render(config, "cpu").text + "\n# edited\n", encoding="utf-8")
        mine = jitgen.override(path)
        call = OTHERS[name]
        found, again, expected = call(mine), call(mine), call(config)

        assert torch.equal(found, expected)
        assert torch.equal(again, expected)
        keys = {kernel.key for kernel in current.get().loader.loaded()}
        assert jitgen.get_kernel(mine).key in keys

    def test_a_tracer(self, doubled: Override) -> None:
        """A graph names it, and runs it in this process."""
        from torch.fx.experimental.proxy_tensor import make_fx

        a, b, ends, right = tensors(5)

        def call(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return jitgen.grouped_gemm(a, b, offs=ends, out_dtype=torch.float32, config=doubled)

        graph = make_fx(call)(a, b, ends)

        assert f"{doubled.name}@" in graph.code
        assert torch.equal(graph(a, b, ends), right * 2)

    @pytest.mark.nightly
    def test_torch_compile(self, doubled: Override) -> None:
        """One graph, with the edited kernel in it."""
        a, b, ends, right = tensors(5)

        @torch.compile(fullgraph=True)
        def call(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            given = {"offs": ends, "out_dtype": torch.float32, "config": doubled}
            return jitgen.grouped_gemm(a, b, **given) + 1  # type: ignore[arg-type]

        assert torch.equal(call(a, b, ends), right * 2 + 1)

    @pytest.mark.nightly
    def test_what_does_not_compile(self, tmp_path: Path) -> None:
        wrong = edited(CONFIG, tmp_path / "my.py", ONCE, f"{ONCE} * factor")

        with pytest.raises(CompileError, match="name 'factor' is not defined"):
            product(wrong)
        assert product(CONFIG) == (1.0, True)


class TestRules:
    def test_frozen(self, doubled: Override, cache_root: Path) -> None:
        """What was compiled before serves; nothing else is compiled, and the error says how."""
        with jitgen.Session(cache_dir=cache_root) as session:
            session.freeze()
            with pytest.raises(KernelMiss, match=r"as edited in .*my\.py.*jitgen run .*my\.py"):
                product(doubled)
            session.freeze("off")
            assert product(doubled) == (2.0, True)
        with jitgen.Session(cache_dir=cache_root, on_miss="error"):
            assert product(doubled) == (2.0, True)
            with pytest.raises(KernelMiss):
                product(CONFIG)

    def test_captured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=128, k=128))
        mine = edited(config, tmp_path / "h.py", "RASTER = 8", "RASTER = 4", arch="sm_90a")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

        with pytest.raises(CaptureMiss, match=r"as edited in .*h\.py is not loaded yet"):
            jitgen.get_kernel(mine)

    @pytest.mark.nightly
    def test_it_is_compiled_again_to_the_byte(self, doubled: Override) -> None:
        """`jitgen verify --rebuild` takes the source of an edited kernel from its entry."""
        entry = jitgen.get_kernel(doubled).entry
        text = entry.source.replace(TWICE, ONCE).encode()

        assert rebuilt(entry.meta, entry.files).is_same
        assert "override" in rebuilt(entry.meta, {**entry.files, "kernel.py": text}).error


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A folder with what the selector chooses for many rows, doubled."""
        folder = tmp_path / "edits"
        folder.mkdir(mode=0o700)
        edited(WANTED, folder / "wanted.py", ONCE, TWICE)
        return folder

    def test_calls_take_it(self, folder: Path) -> None:
        """Chosen or forced, where its config is meant; and nowhere else, nor without the folder."""
        with jitgen.Session(override=folder):
            assert product(rows=MANY) == (2.0, True)
            assert product(WANTED, rows=MANY) == (2.0, True)
            assert product(NEIGHBOUR, rows=MANY) == (1.0, True)
        with jitgen.Session():
            assert product(rows=MANY) == (1.0, True)

    @pytest.mark.nightly
    def test_the_environment(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JITGEN_OVERRIDE", str(folder))
        current.get().reset()

        assert product(rows=MANY) == (2.0, True)
        monkeypatch.setenv("JITGEN_OVERRIDE", str(folder / "absent"))
        assert product(rows=MANY) == (2.0, True)  # it is in memory
        current.get().reset()
        with pytest.raises(SettingError, match="absent cannot be read"):
            product(rows=MANY)

    @pytest.mark.nightly
    def test_prewarm_and_freeze(self, folder: Path, cache_root: Path) -> None:
        """An image is built with the folder, and serves with it: nothing is compiled there."""
        with jitgen.Session(cache_dir=cache_root, override=folder):
            report = jitgen.prewarm([WANTED, NEIGHBOUR], arch="cpu", jobs=2)
            again = jitgen.prewarm([WANTED], arch="cpu")
        with jitgen.Session(cache_dir=cache_root, override=folder, on_miss="error"):
            assert product(rows=MANY) == (2.0, True)
            assert product(NEIGHBOUR) == (1.0, True)
        with (
            jitgen.Session(cache_dir=cache_root, on_miss="error"),
            pytest.raises(KernelMiss),
        ):
            product(rows=MANY)

        mine = jitgen.override(folder / "wanted.py")
        assert [row.state for row in report.rows] == ["compiled", "compiled"]
        assert [row.key for row in again.rows] == [mine.spec.key]
        assert again.rows[0].state == "cached"

    @pytest.mark.nightly
    def test_fallback(self, folder: Path, fallback_root: Path) -> None:
        """A neighbour serves until the edited kernel is compiled, in a worker."""
        options = {"cache_dir": fallback_root, "on_miss": "fallback"}
        with jitgen.Session(override=folder, **options) as session:
            assert product(rows=MANY) == (1.0, True)
            await_true(lambda: product(rows=MANY) == (2.0, True))
            keys = {kernel.key for kernel in session.loader.loaded()}

        assert jitgen.override(folder / "wanted.py").spec.key in keys

    def test_a_damaged_file(self, folder: Path) -> None:
        """The original does not serve in its place."""
        text = (folder / "wanted.py").read_text()
        (folder / "wanted.py").write_text(text.replace('"tile"', '"tiles"'), encoding="utf-8")

        with (
            jitgen.Session(override=folder),
            pytest.raises(OverrideError, match=r"wanted\.py has no good config"),
        ):
            product(rows=MANY)


class TestHome:
    """It stays on this machine."""

    @pytest.fixture
    def both(self, cache_root: Path, doubled: Override, monkeypatch: pytest.MonkeyPatch) -> Store:
        """A cache with an original and an edited kernel."""
        entries = [
            each.entry for each in (jitgen.get_kernel(CONFIG, "cpu"), jitgen.get_kernel(doubled))
        ]
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(cache_root))
        current.get().reset()
        store = Store.open(cache_root)
        for entry in entries:
            store.publish(entry.meta, entry.files)
        return store

    def test_it_is_not_pushed(
        self, both: Store, doubled: Override, tmp_path: Path, command: Jitgen
    ) -> None:
        every = command(f"cache push --to file://{tmp_path}/bucket --json")
        named = command(f"cache push {doubled.spec.key[:12]} --to file://{tmp_path}/bucket --json")

        assert (every.code, every.document["pushed"]) == (0, [spec_of(CONFIG, Arch.CPU).key])
        assert named.code == 1
        assert "edited by a person" in named.document["failed"][doubled.spec.key]
        assert len(list(both.entries())) == 2

    @pytest.mark.nightly
    def test_no_other_place_is_asked(
        self, doubled: Override, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from jitgen.remote import tiers

        asked: list[str] = []
        monkeypatch.setattr(tiers, "backends", lambda _: asked.append("backends") or ())
        with jitgen.Session(
            cache_dir=cache_root,
            remote="file:///nowhere",
            service="https://nowhere",
            verify="off",
        ):
            assert product(doubled) == (2.0, True)
            assert not asked
            assert product(CONFIG) == (1.0, True)
        assert asked

    def test_a_service_does_not_hand_it_out(
        self, both: Store, doubled: Override, tmp_path: Path
    ) -> None:
        entry_store = EntryStore(both, Storage(), Revocations(tmp_path, None))
        keys = [spec_of(CONFIG, Arch.CPU).key, doubled.spec.key]
        bodies = [asyncio.run(entry_store.body(key, "identity")) for key in keys]

        assert [body is not None for body in bodies] == [True, False]
        assert asyncio.run(entry_store.missing(keys)) == keys[1:]


class TestEmulated:
    @pytest.fixture(autouse=True)
    def emulated_gpu(self) -> Iterator[None]:
        """An H100 that is none."""
        with device("sm_90a", num_sms=2):
            yield

    def test_a_call_on_hopper(self, tmp_path: Path) -> None:
        name = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_sm_90a"
        config, _ = GroupedGemmConfig.parse(name)
        before = "factors[i] = row_scales[i] *"
        mine = edited(config, tmp_path / "h.py", before, f"{before} 2.0 *", arch="sm_90a")
        a = torch.randint(-2, 3, (70, 128)).to(torch.float8_e4m3fn)
        b = torch.randint(-2, 3, (2, 64, 128)).to(torch.float8_e4m3fn)
        scales = torch.ones(70, 1), torch.ones(2, 1, 1)
        ends = torch.tensor([3, 70], dtype=torch.int32)
        right = torch.cat([a[:3].float() @ b[0].float().mT, a[3:].float() @ b[1].float().mT])
        out = jitgen.grouped_gemm(a, b, *scales, offs=ends, config=mine)

        assert torch.equal(out.float(), (right * 2).bfloat16().float())
