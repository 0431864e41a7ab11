# SPDX-License-Identifier: Apache-2.0
"""Instructions that move data between memories and registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgen.emulator.isa import atomics, matrix_memory, memory, warp
from jitgen.emulator.isa.addressing import GLOBAL
from jitgen.emulator.isa.atomic_updates import update_of
from jitgen.emulator.isa.matrix_memory import Matrices
from jitgen.emulator.isa.memory import Transfer
from jitgen.emulator.machine.fragment import Wait
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.errors import MachineFault, UnsupportedPtx
from tests.emulator import program
from tests.emulator.memory import AT, BASE, findings, shared_words, with_global
from tests.emulator.program import DEFERRED, EAGER, fragment, run_ptx

# --- instructions ---


class TestLoadAndStore:
    def test_extension_to_wider_registers(self) -> None:
        run = run_ptx(
            """
            mov.b32 %r1, -2;
            st.shared.b32 [1024], %r1;
            ld.shared.s8 %r2, [1024];
            ld.shared.u8 %r3, [1024];
            ld.shared.b16 %rs1, [1024];
            ld.shared.s16 %rd1, [1024];
            ld.shared.u8 %rs2, [1025];
            """
        )
        expected = {"%r2": 2**32 - 2, "%r3": 254, "%rs1": 65534, "%rd1": 2**64 - 2, "%rs2": 255}
        assert {name: int(run.register(name)[0]) for name in expected} == expected

    def test_vectors_and_guards(self) -> None:
        run = run_ptx(
            """
            mov.u32 %r1, %tid.x;
            setp.lt.u32 %p1, %r1, 2;
            shl.b32 %r2, %r1, 4;
            add.u32 %r2, %r2, 1024;
            st.shared.v4.b32 [%r2], {%r1, 11, 12, %r2};
            @!%p1 ld.shared.v2.b64 {%rd1, _}, [%r2];
            """
        )
        assert run.register("%rd1")[:4].tolist() == [0, 0, 11 << 32 | 2, 11 << 32 | 3]

    def test_an_unknown_modifier_is_refused_when_translated(self) -> None:
        with pytest.raises(UnsupportedPtx, match="sparkling"):
            run_ptx("ld.shared.sparkling.b32 %r1, [1024];")


# --- atomics ---


class TestAtomics:
    def update(self, opcode: str, initial: int, *values: str, threads: int = 4) -> Any:
        """Let threads update one word of shared memory; return it and what they found."""
        operands = ", ".join(values)
        run = run_ptx(
            f"""
            mov.u32 %r1, %tid.x;
            mov.b32 %r3, {initial};
            st.shared.b32 [1024], %r3;
            {opcode} %r2, [1024], {operands};
            """,
            threads=threads,
        )
        assert run.findings == []
        word = int(run.cluster.ctas[0].shared.views[4][BASE // 4])
        return word, run.register("%r2").tolist()

    @pytest.mark.parametrize(
        ("opcode", "initial", "values", "result"),
        [
            ("add.u32", 10, ("%r1",), (16, [10, 10, 11, 13])),
            ("add.s32", -1, ("1",), (3, [2**32 - 1, 0, 1, 2])),
            ("min.s32", 1, ("-3",), (2**32 - 3, [1, 2**32 - 3, 2**32 - 3, 2**32 - 3])),
            ("max.u32", 1, ("%r1",), (3, [1, 1, 1, 2])),
            ("and.b32", 7, ("%r1",), (0, [7, 0, 0, 0])),
            ("or.b32", 8, ("%r1",), (11, [8, 8, 9, 11])),
            ("xor.b32", 8, ("%r1",), (8, [8, 8, 9, 11])),
            ("exch.b32", 8, ("%r1",), (3, [8, 0, 1, 2])),
            ("cas.b32", 2, ("%r1", "7"), (7, [2, 2, 2, 7])),
            ("inc.u32", 0, ("2",), (1, [0, 1, 2, 0])),
            ("dec.u32", 1, ("2",), (0, [1, 0, 2, 1])),
        ],
    )
    def test_threads_take_turns(
        self, opcode: str, initial: int, values: tuple[str, ...], result: Any
    ) -> None:
        assert self.update(f"atom.shared.{opcode}", initial, *values) == result

    def test_floating_point_sums(self) -> None:
        bits = int(np.float32(1.5).view(np.uint32))
        word, found = self.update("atom.shared.add.f32", bits, "0f3F000000")
        assert np.uint32(word).view(np.float32) == 3.5
        assert np.array(found, np.uint32).view(np.float32).tolist() == [1.5, 2, 2.5, 3]

    @pytest.mark.parametrize(("kind", "one"), [("f16x2", 0x3C00), ("bf16x2", 0x3F80)])
    def test_packed_sums(self, kind: str, one: int) -> None:
        word, _ = self.update(f"atom.shared.add.noftz.{kind}", one, str(one << 16 | one), threads=1)
        assert word == one << 16 | {"f16x2": 0x4000, "bf16x2": 0x4000}[kind]

    def test_vector_of_floats_in_global_memory(self) -> None:
        f = fragment(64)
        data = np.zeros(4, np.float32)
        (start,) = with_global(f, data)
        reduce = atomics.Atomic(GLOBAL, 4, "relaxed", update_of("add", "f32"), False)
        values = tuple(np.full(64, i, np.float32).view(np.uint32) for i in range(4))
        atomics.apply(f, AT, None, np.uint64(start), reduce, values)
        assert data.tolist() == [0, 64, 128, 192]
        assert findings(f) == []

    def test_a_lock_that_is_not_free_is_waited_for(self) -> None:
        f = fragment(1)
        data = np.ones(1, np.uint32)
        (start,) = with_global(f, data)
        lock = atomics.Atomic(GLOBAL, 4, "acquire", update_of("cas", "b32"), True)
        arguments = (f, AT, None, np.uint64(start), lock, (np.uint32(0),), (np.uint32(1),))
        assert isinstance(atomics.apply(*arguments), np.ndarray)
        assert isinstance(atomics.apply(*arguments), Wait)
        store = Transfer(GLOBAL, 4, 1, "release")
        memory.store(f, AT, None, np.uint64(start), store, (np.uint32(0),))
        assert isinstance(atomics.apply(*arguments), np.ndarray)
        assert data[0] == 1

    def test_a_counter_counts_on_though_it_is_not_looked_at(self) -> None:
        f = fragment(1)
        data = np.zeros(1, np.uint32)
        (start,) = with_global(f, data)
        add = atomics.Atomic(GLOBAL, 4, "relaxed", update_of("add", "u32"), True)
        for _ in range(3):
            found = atomics.apply(f, AT, None, np.uint64(start), add, (np.uint32(1),))
            assert isinstance(found, np.ndarray)
        assert data[0] == 3


# --- matrices ---


def addresses_of_rows(count: int) -> NDArray[np.uint32]:
    return (BASE + 16 * (np.arange(32) % (8 * count))).astype(np.uint32)


class TestMatrices:
    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_rows(self, count: int) -> None:
        f = fragment(32)
        words = shared_words(f, 32 * count)
        matrices = Matrices(count, 16, is_transposed=False)
        loaded = matrix_memory.load_matrices(f, AT, None, addresses_of_rows(count), matrices)
        assert (loaded == words.reshape(count, 32)).all()

    def test_columns(self) -> None:
        f = fragment(32)
        elements = np.arange(64, dtype=np.uint16).reshape(8, 8)
        f.cta.shared.put(slice(BASE, BASE + 128), elements.reshape(-1).view(np.uint8))
        matrices = Matrices(1, 16, is_transposed=True)
        loaded = matrix_memory.load_matrices(f, AT, None, addresses_of_rows(1), matrices)[0]
        for lane in (0, 1, 5, 31):
            row, column = 2 * (lane % 4), lane // 4
            low, high = elements[row : row + 2, column].tolist()
            assert loaded[lane] == low | high << 16

    @pytest.mark.parametrize("is_transposed", [False, True])
    def test_a_store_is_the_inverse_of_a_load(self, is_transposed: bool) -> None:
        f = fragment(64)
        values = tuple(np.arange(64, dtype=np.uint32) * 0x10003 + i for i in range(4))
        addresses = (BASE + 16 * np.arange(64)).astype(np.uint32)
        matrices = Matrices(4, 16, is_transposed)
        matrix_memory.store_matrices(f, AT, None, addresses, matrices, values)
        warp.meet(f, AT, None, warp.EVERYONE, True)
        loaded = matrix_memory.load_matrices(f, AT, None, addresses, matrices)
        assert (loaded == np.stack(values)).all()
        assert findings(f) == []

    @pytest.mark.parametrize("bits", [4, 6])
    def test_narrow_elements_become_bytes(self, bits: int) -> None:
        f = fragment(32)
        elements = (np.arange(8 * 16) * 5 % (1 << bits)).reshape(8, 16)
        flags = (elements[..., None] >> np.arange(bits)) & 1
        packed = np.packbits(flags.reshape(8, -1).astype(np.uint8), axis=1, bitorder="little")
        rows = np.zeros((8, 16), np.uint8)
        rows[:, : 2 * bits] = packed
        f.cta.shared.put(slice(BASE, BASE + 128), rows.reshape(-1))
        matrices = Matrices(1, bits, is_transposed=False)
        loaded = matrix_memory.load_matrices(f, AT, None, addresses_of_rows(1), matrices)
        assert (loaded.view(np.uint8).reshape(8, 16) == elements).all()

    def test_padding_need_not_be_there(self) -> None:
        f = fragment(32)
        where = (BASE + 16 * np.arange(8)[:, None] + np.arange(8)).reshape(-1)
        f.cta.shared.put(where, np.zeros(64, np.uint8))
        matrices = Matrices(1, 4, is_transposed=False)
        matrix_memory.load_matrices(f, AT, None, addresses_of_rows(1), matrices)
        assert findings(f) == []

    def test_a_row_that_is_not_aligned(self) -> None:
        f = fragment(32)
        shared_words(f, 64)
        with pytest.raises(MachineFault, match="multiple of 16"):
            matrix_memory.load_matrices(
                f, AT, None, addresses_of_rows(1) + np.uint32(8), Matrices(1, 16, False)
            )


# --- cp.async and st.async ---

COPY = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, 1024;
    mad.lo.u32 %r2, %r1, 16, %r2;
    cp.async.cg.shared.global [%r2], [{start}], 16, {read};
    cp.async.commit_group;
    {wait}
    ld.shared.v4.b32 {{%r3, %r4, %r5, %r6}}, [%r2];
"""


@pytest.mark.parametrize("mode", [EAGER, DEFERRED])
class TestCopies:
    @pytest.fixture
    def source(self, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.uint32]:
        """Four words of global memory."""
        words = np.arange(1, 5, dtype=np.uint32)
        declared = GlobalMemory()
        declared.add(words.ctypes.data, words.nbytes, "source")
        monkeypatch.setattr(program, "GlobalMemory", lambda: declared)
        return words

    def run(self, source: NDArray[np.uint32], mode: Any, wait: str, read: int = 16) -> Any:
        text = COPY.format(start=source.ctypes.data, wait=wait, read=read)
        return run_ptx(text, mode=mode)

    def test_a_group_that_was_waited_for(self, source: Any, mode: Any) -> None:
        run = self.run(source, mode, "cp.async.wait_group 0;")
        assert [int(run.register(f"%r{i}")[7]) for i in range(3, 7)] == [1, 2, 3, 4]
        assert run.findings == []

    def test_what_is_not_read_is_zero(self, source: Any, mode: Any) -> None:
        run = self.run(source, mode, "cp.async.wait_all;", read=4)
        assert [int(run.register(f"%r{i}")[7]) for i in range(3, 7)] == [1, 0, 0, 0]

    @pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
    def test_a_group_that_was_not(self, source: Any, mode: Any, wait: str) -> None:
        assert "race" in self.run(source, mode, wait).findings

    def test_an_mbarrier_tracks_copies(self, source: Any, mode: Any) -> None:
        wait = """
            mov.b32 %r8, 2048;
            setp.eq.u32 %p1, %r1, 0;
            @%p1 mbarrier.init.shared.b64 [%r8], 32;
            bar.sync 0;
            cp.async.mbarrier.arrive.noinc.shared.b64 [%r8];
            $again:
            mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0;
            @!%p2 bra $again;
        """
        run = self.run(source, mode, wait)
        assert [int(run.register(f"%r{i}")[7]) for i in range(3, 7)] == [1, 2, 3, 4]
        assert run.findings == []


STORES = """
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [4096], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [4096], 256;
    mad.lo.u32 %r2, %r1, 8, 1024;
    mov.u32 %r7, 4096;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r2], {%r1, 5}, [%r7];
    $again:
    mbarrier.try_wait.parity.shared.b64 %p2, [4096], 0;
    @!%p2 bra $again;
    ld.shared.v2.b32 {%r3, %r4}, [%r2];
    """
"""A warp stores 8 bytes a lane and waits for all."""


@pytest.mark.parametrize("mode", [EAGER, DEFERRED])
@pytest.mark.parametrize("distance", [8, 16, 40], ids=lambda x: f"every {x} bytes")
def test_asynchronous_stores_signal_a_barrier(mode: Any, distance: int) -> None:
    run = run_ptx(STORES.replace("%r1, 8,", f"%r1, {distance},"), mode=mode)

    assert run.register("%r3").tolist() == list(range(32))
    assert run.register("%r4").tolist() == [5] * 32
    assert run.findings == []


@pytest.mark.parametrize("mode", [EAGER, DEFERRED])
def test_asynchronous_stores_of_one_value_to_one_place_are_a_race(mode: Any) -> None:
    in_pairs = STORES.replace("mad.lo.u32 %r2, %r1,", "shr.u32 %r5, %r1, 1; mad.lo.u32 %r2, %r5,")

    assert run_ptx(in_pairs.replace("{%r1, 5}", "{5, 5}"), mode=mode).findings == ["race"]


@pytest.mark.parametrize("mode", [EAGER, DEFERRED])
def test_a_phase_that_ends_with_one_of_several_asynchronous_stores(mode: Any) -> None:
    found = run_ptx(STORES.replace("256;", "128;"), mode=mode).findings

    assert set(found) == {"race" if mode is EAGER else "uninitialised", "phase", "exit"}
