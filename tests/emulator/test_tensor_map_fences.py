# SPDX-License-Identifier: Apache-2.0
"""Which fences of a changed tensor map are known, however many other CTAs execute."""

from __future__ import annotations

import pytest

from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.machine.tensor_maps import TensorMaps
from jitgen.emulator.machine.track import Stamp

MAP = 0x1000


def write(clocks: Clocks, agent: int) -> Stamp:
    return Stamp(
        kind="write",
        clocks=clocks,
        agent=agent,
        epoch=clocks.now(agent),
        at=0,
        is_async=False,
        scope=Scope.GPU,
        rank=0,
    )


@pytest.mark.parametrize("kind", ["release", "acquire"])
def test_fences_of_other_clusters_displace_none(kind: str) -> None:
    """The latest 256 of all clusters were kept, so a fence was missing that was executed."""
    clocks, maps = Clocks(), TensorMaps()
    agent = clocks.agent("a warp")
    changed = write(clocks, agent)
    assert maps.lacking(changed, clocks, agent, MAP) == "release"
    maps.release(clocks, agent)
    assert maps.lacking(changed, clocks, agent, MAP) == "acquire"
    maps.acquire(clocks, agent, MAP)
    for _ in range(300):
        others = Clocks()
        other = others.agent("another warp")
        if kind == "release":
            maps.release(others, other)
        else:
            maps.acquire(others, other, MAP)

    assert maps.lacking(changed, clocks, agent, MAP) == ""


def test_a_later_release_of_an_agent_counts_for_its_earlier_write() -> None:
    clocks, maps = Clocks(), TensorMaps()
    agent = clocks.agent("a warp")
    first = write(clocks, agent)
    maps.release(clocks, agent)
    second = write(clocks, agent)
    assert maps.lacking(second, clocks, agent, MAP) == "release"
    maps.release(clocks, agent)

    assert {maps.lacking(each, clocks, agent, MAP) for each in (first, second)} == {"acquire"}
