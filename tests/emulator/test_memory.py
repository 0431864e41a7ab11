# SPDX-License-Identifier: Apache-2.0
"""
Memories and the instructions that move data between them and registers.
"""

from __future__ import annotations

import mmap
import weakref

import numpy as np
import pytest

from jitgen.emulator.isa import memory
from jitgen.emulator.isa.addressing import GENERIC, GLOBAL, SHARED
from jitgen.emulator.isa.memory import Transfer
from jitgen.emulator.machine.fragment import Wait
from jitgen.emulator.program.parse import SHARED_WINDOW
from jitgen.errors import MachineFault
from tests.emulator.memory import AT, BASE, findings, shared_words, with_global
from tests.emulator.program import fragment

MAP_32BIT = 0x40  # mmap(2): in the first 2 GiB


def _mapped_low(size: int) -> mmap.mmap:
    """Return memory where that of a Python lies which is not position-independent."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT)


# --- shared memory ---


class TestShared:
    @pytest.mark.parametrize(("width", "count"), [(1, 1), (2, 2), (4, 1), (4, 4), (8, 2)])
    def test_what_is_stored_is_loaded(self, width: int, count: int) -> None:
        f = fragment(64)
        transfer = Transfer(SHARED, width, count, "weak")
        addresses = (BASE + np.arange(64) * width * count).astype(np.uint32)
        values = tuple((np.arange(64) + 7 * i).astype(f"u{width}") for i in range(count))
        memory.store(f, AT, None, addresses, transfer, values)
        loaded = memory.load(f, AT, None, addresses, transfer)
        assert loaded.dtype == values[0].dtype
        assert (loaded == np.stack(values)).all()
        assert findings(f) == []

    def test_a_mask_spares_the_others(self) -> None:
        f = fragment(32)
        words = shared_words(f, 32)
        addresses = (BASE + 4 * np.arange(32)).astype(np.uint32)
        mask = np.arange(32) < 5
        transfer = Transfer(SHARED, 4, 1, "weak")
        memory.store(f, AT, mask, addresses, transfer, (np.uint32(99),))
        loaded = memory.load(f, AT, ~mask, addresses, transfer)[0]
        assert loaded[:5].tolist() == [0] * 5
        assert (loaded[5:] == words[5:]).all()
        assert (f.cta.shared.views[4][BASE // 4 :][:5] == 99).all()

    @pytest.mark.parametrize(
        ("address", "reason"),
        [(1022, "out of bounds"), (BASE + 4096, "out of bounds"), (BASE + 2, "multiple of 4")],
    )
    def test_bad_addresses(self, address: int, reason: str) -> None:
        f = fragment(32)
        with pytest.raises(MachineFault, match=reason):
            memory.load(f, AT, None, np.uint32(address), Transfer(SHARED, 4, 1, "weak"))

    def test_what_was_never_written(self) -> None:
        f = fragment(32)
        shared_words(f, 32)
        f.cta.shared.initialised[BASE + 8] = False
        transfer = Transfer(SHARED, 4, 1, "weak")
        memory.load(f, AT, None, np.uint32(BASE), transfer)
        assert findings(f) == []
        memory.load(f, AT, None, np.uint32(BASE + 8), transfer)
        (finding,) = f.machine.findings.values()
        assert finding.kind == "uninitialised"
        assert "0x408" in finding.message

    def test_warps_exchange_data_without_a_barrier(self) -> None:
        f = fragment(64)
        transfer = Transfer(SHARED, 4, 1, "weak")
        addresses = (BASE + 4 * np.arange(64)).astype(np.uint32)
        memory.store(f, AT, None, addresses, transfer, (np.arange(64, dtype=np.uint32),))
        memory.load(f, AT, None, addresses, transfer)
        assert findings(f) == []
        memory.load(f, AT, None, addresses[::-1], transfer)
        assert findings(f) == ["race"]

    def test_two_warps_may_write_the_halves_of_a_word(self) -> None:
        f = fragment(64)
        half, word = Transfer(SHARED, 2, 1, "weak"), Transfer(SHARED, 4, 1, "weak")
        addresses = (BASE + 2 * (np.arange(64) // 32)).astype(np.uint32)
        memory.store(f, AT, None, addresses, half, (np.uint16(3),))
        assert findings(f) == []
        assert f.cta.shared.views[4][BASE // 4] == 0x30003
        memory.load(f, AT, None, np.uint32(BASE), word)
        assert findings(f) == ["race"]

    def test_a_word_is_split_after_it_was_written(self) -> None:
        f = fragment(64)
        half, word = Transfer(SHARED, 2, 1, "weak"), Transfer(SHARED, 4, 1, "weak")
        first = f.lanes < 32
        memory.store(f, AT, first, np.uint32(BASE), word, (np.uint32(0),))
        memory.store(f, AT, first, np.uint32(BASE), half, (np.uint16(1),))
        assert findings(f) == []
        memory.load(f, AT, ~first, np.uint32(BASE + 2), half)
        assert findings(f) == ["race"]

    def test_the_other_cta_of_the_cluster(self) -> None:
        f = fragment(32, cluster=2)
        transfer = Transfer(SHARED, 4, 1, "weak")
        addresses = (BASE + 4 * np.arange(32) | 1 << 24).astype(np.uint32)
        memory.store(f, AT, None, addresses, transfer, (np.arange(32, dtype=np.uint32),))
        other = f.cluster.ctas[1].shared
        assert (other.views[4][BASE // 4 :][:32] == np.arange(32)).all()
        assert not f.cta.shared.initialised.any()

    def test_asynchronous_reads_look_at_order_and_data(self) -> None:
        f = fragment(32)
        shared, unit = f.cta.shared, f.cta.unit("bulk", 0)
        where = np.array([[BASE, BASE + 1], [BASE + 8, BASE + 9]])
        row = int(f.agents[0])
        shared.note_async_read(f, AT, where, unit.agent, unit.epoch(), row)
        shared.take(f, AT, where)
        assert findings(f) == ["uninitialised"]
        f.machine.findings.clear()
        words = shared_words(f, 4)
        shared.note_async_read(f, AT, where, unit.agent, unit.epoch(), row)
        read = shared.take(f, AT, where)
        assert read.tolist() == words.view(np.uint8)[where - BASE].tolist()
        transfer = Transfer(SHARED, 4, 1, "weak")
        memory.store(f, AT, None, np.uint32(BASE + 8), transfer, (np.uint32(1),))
        assert findings(f) == ["race"]

    def test_nothing_is_left_when_it_is_freed(self) -> None:
        f = fragment(32)
        shared_words(f, 4)
        history = weakref.ref(f.cta.shared.history)
        f.cta.shared.free()
        assert history() is None
        assert f.cta.shared.bytes.base is None


# --- global memory ---


class TestGlobal:
    def test_loads_and_stores(self) -> None:
        f = fragment(64)
        data = np.arange(256, dtype=np.uint32)
        (start,) = with_global(f, data)
        addresses = (start + 16 * np.arange(64)).astype(np.uint64)
        transfer = Transfer(GLOBAL, 4, 4, "weak")
        loaded = memory.load(f, AT, None, addresses, transfer)
        assert (loaded == data.reshape(64, 4).T).all()
        before = f.machine.timeline.events
        memory.store(f, AT, None, addresses, transfer, tuple(loaded[::-1]))
        assert data[:4].tolist() == [3, 2, 1, 0]
        assert f.machine.timeline.events > before

    def test_threads_may_read_different_tensors(self) -> None:
        f = fragment(32)
        arrays = [np.full(4, i, np.uint64) for i in range(2)]
        starts = with_global(f, *arrays)
        addresses = np.array(starts, np.uint64)[np.arange(32) % 2]
        loaded = memory.load(f, AT, None, addresses, Transfer(GLOBAL, 8, 1, "weak"))
        assert loaded[0].tolist() == [0, 1] * 16

    @pytest.mark.parametrize("shift", [-4, 14, 16, 1 << 20])
    def test_out_of_bounds(self, shift: int) -> None:
        f = fragment(32)
        (start,) = with_global(f, np.zeros(4, np.uint32))
        transfer = Transfer(GLOBAL, 4, 1, "weak")
        with pytest.raises(MachineFault, match=r"tensor 0|multiple of 4"):
            memory.load(f, AT, None, np.uint64(start + shift), transfer)

    def test_misaligned(self) -> None:
        f = fragment(32)
        (start,) = with_global(f, np.zeros(8, np.uint32))
        with pytest.raises(MachineFault, match="multiple of 16"):
            memory.load(f, AT, None, np.uint64(start + 8), Transfer(GLOBAL, 4, 4, "weak"))

    def test_generic_addresses(self) -> None:
        f = fragment(32)
        data = np.array([5], np.uint32)
        (start,) = with_global(f, data)
        shared_words(f, 1, first=6)
        transfer = Transfer(GENERIC, 4, 1, "weak")
        assert memory.load(f, AT, None, np.uint64(start), transfer)[0, 0] == 5
        assert memory.load(f, AT, None, np.uint64(SHARED_WINDOW + BASE), transfer)[0, 0] == 6

    def test_memory_of_the_host_below_four_gigabytes(self) -> None:
        """It was taken for shared memory, and races were told that are none."""
        low = np.frombuffer(_mapped_low(4096), np.uint32)
        low[0] = 7
        for transfer in (Transfer(GENERIC, 4, 1, "weak"), Transfer(GENERIC, 4, 1, "acquire")):
            f = fragment(32)
            (start,) = with_global(f, low)
            assert start < 2**32
            assert memory.load(f, AT, None, np.uint64(start), transfer)[0, 0] == 7

    def test_a_spin_waits_for_a_write(self) -> None:
        f = fragment(32)
        data = np.zeros(1, np.uint32)
        (start,) = with_global(f, data)
        transfer = Transfer(GLOBAL, 4, 1, "acquire")
        arguments = (f, AT, None, np.uint64(start), transfer)
        assert isinstance(memory.load_and_wait(*arguments), np.ndarray)
        wait = memory.load_and_wait(*arguments)
        assert isinstance(wait, Wait)
        assert wait.retry
        assert not wait.is_over()
        memory.store(f, AT, None, np.uint64(start), transfer, (np.uint32(1),))
        assert wait.is_over()
        assert isinstance(memory.load_and_wait(*arguments), np.ndarray)

    def test_a_dependent_grid_waits_for_the_one_before(self) -> None:
        f = fragment(32, is_dependent=True)
        (start,) = with_global(f, np.zeros(1, np.uint32))
        transfer = Transfer(GLOBAL, 4, 1, "weak")
        memory.load(f, AT, None, np.uint64(start), transfer)
        assert findings(f) == ["race"]
        f.machine.findings.clear()
        f.cluster.clocks.learn(f.agents, f.cluster.previous_grid, 1)
        memory.load(f, AT, None, np.uint64(start), transfer)
        assert findings(f) == []

    @pytest.mark.parametrize(("give", "take"), [("release", "acquire"), ("relaxed", "relaxed")])
    def test_a_flag_orders_shared_memory(self, give: str, take: str) -> None:
        f = fragment(64)
        (flag,) = with_global(f, np.zeros(1, np.uint32))
        giver, taker = (f.part((f.lanes < 32) == is_first) for is_first in (True, False))
        weak = Transfer(SHARED, 4, 1, "weak")
        memory.store(giver, AT, None, np.uint32(BASE), weak, (np.uint32(1),))
        if give == "relaxed":
            f.cluster.clocks.fence(giver.agents)
        to_flag = Transfer(GLOBAL, 4, 1, give)
        memory.store(giver, AT, None, np.uint64(flag), to_flag, (np.uint32(1),))
        memory.load(taker, AT, None, np.uint64(flag), Transfer(GLOBAL, 4, 1, take))
        if take == "relaxed":
            f.cluster.clocks.fence(taker.agents)
        memory.load(taker, AT, None, np.uint32(BASE), weak)
        assert findings(f) == []
        memory.store(giver, AT, None, np.uint32(BASE), weak, (np.uint32(2),))
        assert findings(f) == ["race"]
