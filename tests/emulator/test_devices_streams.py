# SPDX-License-Identifier: Apache-2.0
"""Two streams on each of two devices: micro-batches beside each other, and what orders them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitgen.errors import InputError
from tests.emulator.devices import Host, kernel, words
from tests.emulator.mutation import assert_found
from tests.emulator.test_devices_exhibits import EXCHANGE, PARAMS, WORDS

ADD = """
ld.param.b64 %rd1, [to];
ld.param.b64 %rd2, [one];
ld.param.b64 %rd3, [other];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd1, %rd1, %rd4;
add.u64 %rd2, %rd2, %rd4;
add.u64 %rd3, %rd3, %rd4;
ld.global.b32 %r2, [%rd2];
ld.global.b32 %r3, [%rd3];
add.u32 %r2, %r2, %r3;
st.global.b32 [%rd1], %r2;
"""
"""Adds the results of both streams."""


def batches(*, joined: bool = True, apart: bool = True) -> tuple[Host, list[torch.Tensor]]:
    """
    Return two devices that exchange two micro-batches, each in a stream, and add what they got.

    Args:
        joined: The sum waits for the other stream, too.
        apart: Each stream has windows of its own.
    """
    host, sums = Host(2), []
    inboxes = [host.window(f"inbox {number}", 2 * WORDS) for number in range(2)]
    flags = [host.window(f"flag {number}", 1) for number in range(2)]
    for device in range(2):
        peer, outs = 1 - device, []
        for stream in range(2):
            inbox, flag = (some[stream if apart else 0] for some in (inboxes, flags))
            outs.append(torch.zeros(WORDS, dtype=torch.int32))
            arguments: dict[str, object] = {
                "mine": torch.arange(WORDS, dtype=torch.int32) + 1000 * device + 100 * stream,
                "inbox": inbox.tensors[device],
                "peer": inbox.seen(of=peer, on=device),
                "flag": flag.tensors[device],
                "raised": flag.seen(of=peer, on=device),
                "state": torch.zeros(1, dtype=torch.int32),
                f"out {stream}": outs[stream],
            }
            host.call(device, kernel(EXCHANGE, "exchange", PARAMS), arguments)
            host.calls[-1] = replace(host.calls[-1], stream=stream)
        total = torch.zeros(WORDS, dtype=torch.int32)
        sums.append(total)
        text = kernel(ADD, "add", [".u64 to", ".u64 one", ".u64 other"])
        host.call(device, text, {"to": total, "one": outs[0], "other": outs[1]})
        after = [len(host.calls) - 2] if joined else []
        host.calls[-1] = replace(host.calls[-1], after=after)
    return host, sums


def test_micro_batches_in_two_streams() -> None:
    host, sums = batches()
    assert host.found("all", replays=3) == []
    for device, total in enumerate(sums):
        peer = 1000 * (1 - device)
        assert words(total) == [2 * (peer + i + 3) + 100 for i in range(WORDS)]


def test_streams_are_not_ordered() -> None:
    """CUDA C++ Programming Guide, "Cross-stream Dependencies"."""
    host, _ = batches(joined=False)
    found = host.found("eager", replays=2)
    assert_found(found, ("race", "out 1 of device", "launch", "ld.global.b32 %r3"))


def test_two_streams_on_one_window() -> None:
    host, _ = batches(apart=False)
    assert_found(host.found("eager,reversed", replays=2), ("race", "inbox 0 of device"))


def test_a_replay_follows_all_of_the_one_before() -> None:
    """Also what another stream left that nothing in the replay waits for."""
    host, _ = batches(joined=False)
    host.calls = [call for call in host.calls if "to" not in call.arguments]
    for number in (1, 3):  # the second stream of each device goes on with what the first one got
        arguments = {
            **host.calls[number].arguments,
            "mine": host.calls[number - 1].arguments["out 0"],
        }
        host.calls[number] = replace(host.calls[number], arguments=arguments, stream=0)
    assert host.found("eager", replays=2) == []
    host.calls[1] = replace(host.calls[1], stream=1)
    assert_found(host.found("eager", replays=2), ("race", "out 0 of device 0"))


@pytest.mark.parametrize("after", [[2], [5], [3], [-1]])
def test_what_a_call_cannot_follow(after: list[int]) -> None:
    host, _ = batches()
    host.calls[2] = replace(host.calls[2], after=after)
    with pytest.raises(InputError, match="after: call 2 may follow earlier calls of its device"):
        host.run("eager")
