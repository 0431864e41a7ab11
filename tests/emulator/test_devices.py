# SPDX-License-Identifier: Apache-2.0
"""Two devices that hand data over: scopes, addresses of peers, ends of kernels, limits of time."""

from __future__ import annotations

import pytest

from tests.emulator.devices import Host, kernel, words
from tests.emulator.mutation import Mutation, assert_found, by_name

SEND = """
ld.param.b64 %rd1, [peer];
ld.param.b64 %rd2, [flag];
mov.u32 %r1, %tid.x;
mad.wide.u32 %rd3, %r1, 4, %rd1;
add.u32 %r2, %r1, 100;
st.global.b32 [%rd3], %r2;
bar.sync 0;
setp.eq.u32 %p1, %r1, 0;
@%p1 st.release.sys.global.b32 [%rd2], 1;
"""
RECEIVE = """
ld.param.b64 %rd1, [inbox];
ld.param.b64 %rd2, [flag];
ld.param.b64 %rd4, [out];
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra $GO;
$WAIT:
ld.acquire.sys.global.b32 %r3, [%rd2];
setp.ne.u32 %p2, %r3, 1;
@%p2 bra $WAIT;
$GO:
bar.sync 0;
mul.wide.u32 %rd5, %r1, 4;
add.u64 %rd3, %rd1, %rd5;
ld.global.b32 %r2, [%rd3];
add.u64 %rd3, %rd4, %rd5;
st.global.b32 [%rd3], %r2;
"""


def pair(send: str = SEND, receive: str = RECEIVE, sender: int = 0) -> Host:
    """Return two devices of which one sends 64 words to the other."""
    import torch

    host, other = Host(2), 1 - sender
    inbox, flag = host.window("inbox", 64, is_unknown=True), host.window("flag", 1)
    out = torch.zeros(64, dtype=torch.int32)
    host.call(
        sender,
        kernel(send, "send", [".u64 peer", ".u64 flag"]),
        {"peer": inbox.seen(of=other, on=sender), "flag": flag.seen(of=other, on=sender)},
        block=64,
    )
    host.call(
        other,
        kernel(receive, "receive", [".u64 inbox", ".u64 flag", ".u64 out"]),
        {"inbox": inbox.tensors[other], "flag": flag.tensors[other], "out": out},
        block=64,
    )
    return host


@pytest.mark.parametrize("sender", [0, 1])
def test_a_flag_hands_data_over(sender: int) -> None:
    host = pair(sender=sender)
    report = host.run("all")
    assert report.is_clean, report
    assert words(host.calls[1].arguments["out"]) == [100 + i for i in range(64)]


MISTAKES = [
    Mutation(
        "released to its own device", "st.release.sys", "st.release.gpu",
        ("race", "inbox of device 1", "device 1 launch 0", "device 0 launch 0", "st.global.b32"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=by_name)
def test_mistakes(mistake: Mutation) -> None:
    in_send = mistake.old in SEND
    host = pair(mistake.edit(SEND)) if in_send else pair(receive=mistake.edit(RECEIVE))
    assert_found(host.found(), mistake.found)
