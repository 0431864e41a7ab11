# SPDX-License-Identifier: Apache-2.0
"""Two devices that hand data over: scopes, addresses of peers, ends of kernels, limits of time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitgen.emulator.host.windows import Window
from jitgen.errors import InputError
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


BODIES = (SEND, RECEIVE)
INBOX = ("race", "inbox of device 1", "device 1 launch 0", "device 0 launch 0", "st.global.b32")
MISTAKES = [
    # "Scope", "Morally strong operations"
    Mutation("released to its own device", "st.release.sys", "st.release.gpu", INBOX),
    Mutation("acquired from its own device", "ld.acquire.sys", "ld.acquire.gpu", INBOX),
    Mutation("a counter of its own device", "st.release.sys.global.b32 [%rd2], 1;",
             "red.release.gpu.global.add.u32 [%rd2], 1;", INBOX),
    # "Release and Acquire Patterns"
    Mutation("not released", "st.release.sys", "st.relaxed.sys", INBOX),
    Mutation("not acquired", "ld.acquire.sys", "ld.relaxed.sys", INBOX),
    Mutation("released too early", "st.global.b32 [%rd3], %r2;\nbar.sync 0;",
             "bar.sync 0;\nst.global.b32 [%rd3], %r2;", INBOX),
    Mutation("read too early", "$GO:\nbar.sync 0;", "$GO:", INBOX),
    # "Data races"
    Mutation("a weak flag", "st.release.sys.global", "st.global", ("race", "flag of device 1")),
    Mutation("a flag that is polled weakly", "ld.acquire.sys.global", "ld.global",
             ("race", "flag of device 1")),
    Mutation("written after the flag", "@%p1 st.release.sys.global.b32 [%rd2], 1;",
             "@%p1 st.release.sys.global.b32 [%rd2], 1;\nst.global.b32 [%rd3], %r1;", INBOX),
    # memory of the peer that nothing wrote
    Mutation("half of the words", "mad.wide.u32 %rd3, %r1, 4, %rd1;",
             "and.b32 %r9, %r1, 31;\nmad.wide.u32 %rd3, %r9, 4, %rd1;",
             ("uninitialised", "inbox of device 1")),
    Mutation("behind the window", "add.u32 %r2, %r1, 100;",
             "add.u32 %r2, %r1, 100;\nadd.u64 %rd3, %rd3, 4;",
             ("fault", "bytes behind inbox of device 1")),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=by_name)
def test_mistakes(mistake: Mutation) -> None:
    send, receive = (body.replace(mistake.old, mistake.new) for body in BODIES)
    assert (send, receive) != BODIES
    assert_found(pair(send, receive).found("eager"), mistake.found)


def test_a_device_sees_memory_of_a_peer_at_its_own_address_only() -> None:
    """What is the address of a buffer on its device is no address of another device."""
    host = pair()
    inbox = host.windows["inbox"]
    host.calls[0].arguments["peer"] = inbox.address(of=1, on=1)  # type: ignore[index]
    assert_found(host.found("eager"), ("fault: global memory", "is out of bounds"))


def test_memory_that_is_no_window_is_seen_by_no_peer() -> None:
    host = pair()
    out = host.calls[1].arguments["out"]
    host.calls[0].arguments["peer"] = out.data_ptr()  # type: ignore[index,attr-defined]
    assert_found(host.found("eager"), ("fault: global memory", "is out of bounds"))


FROM_CTA_TO_CTA = """
ld.param.b64 %rd1, [word];
ld.param.b64 %rd2, [flag];
mov.u32 %r1, %ctaid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra $TAKE;
st.global.b32 [%rd1], 7;
st.release.gpu.global.b32 [%rd2], 1;
bra $END;
$TAKE:
ld.acquire.gpu.global.b32 %r2, [%rd2];
setp.ne.u32 %p2, %r2, 1;
@%p2 bra $TAKE;
ld.global.b32 %r3, [%rd1];
$END:
"""


def test_within_a_device_its_scope_is_enough() -> None:
    host = Host(2)
    word, flag = host.window("word", 1), host.window("flag", 1)
    text = kernel(FROM_CTA_TO_CTA, params=[".u64 word", ".u64 flag"])
    for device in range(2):
        arguments = {"word": word.tensors[device], "flag": flag.tensors[device]}
        host.call(device, text, arguments, grid=2, block=1)
    assert host.found("all") == []


CHAIN = """
ld.param.b64 %rd1, [word];
ld.param.b64 %rd2, [flag];
ld.param.b64 %rd3, [next];
$WAIT:
ld.acquire.sys.global.b32 %r1, [%rd2];
setp.eq.u32 %p1, %r1, 0;
@%p1 bra $WAIT;
st.release.sys.global.b32 [%rd3], 1;
"""
FIRST = """
ld.param.b64 %rd1, [word];
ld.param.b64 %rd3, [next];
st.global.b32 [%rd1], 7;
st.release.sys.global.b32 [%rd3], 1;
"""
LAST = CHAIN.replace("st.release.sys.global.b32 [%rd3], 1;", "ld.global.b32 %r2, [%rd1];")


def chain(middle: str, *, kernels: int = 1) -> list[str]:
    """Let device 0 write to device 3 and tell 1, which tells 2, which tells 3, which reads."""
    host = Host(4)
    word, flag = host.window("word", 1), host.window("flag", 1)
    bodies = [FIRST, middle, middle, LAST]
    params = [".u64 word", ".u64 flag", ".u64 next"]
    for device, body in enumerate(bodies):
        parts = [body, ""] if kernels == 1 else list(body.partition("st.release")[::2])
        tails = ["", f"ld.param.b64 %rd3, [next];\nst.release{parts[1]}"]
        for part in [body] if kernels == 1 or device in {0, 3} else [parts[0], tails[1]]:
            arguments: dict[str, object] = {
                "word": word.seen(of=3, on=device),
                "flag": flag.tensors[device],
                "next": flag.seen(of=(device + 1) % 4, on=device),
            }
            host.call(device, kernel(part, params=params), arguments, block=1)
    return host.found("eager,late-links,random-3")


def test_flags_hand_on_what_others_released() -> None:
    """PTX ISA, "Causality order": also over two devices that never touch the data."""
    assert chain(CHAIN) == []
    assert chain(CHAIN, kernels=2) == []
    wanted = ("race: read of global memory", "word of device 3", "device 0 launch 0")
    assert_found(chain(CHAIN.replace("ld.acquire", "ld.relaxed")), wanted)
    assert_found(chain(CHAIN.replace("st.release.sys", "st.relaxed.sys")), wanted)


def test_what_devices_share_is_a_window() -> None:
    host = pair()
    mine = host.calls[1].arguments["out"]
    host.calls[0].arguments["peer"] = mine  # type: ignore[index]
    with pytest.raises(InputError, match="share memory; what devices share is a Window"):
        host.run("eager")


def test_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="must be one at least"):
        Host(2).run("eager")
    host = pair()
    host.calls[0] = replace(host.calls[0], device=2)
    with pytest.raises(InputError, match="device: must be 0 to 1"):
        host.run("eager")
    host = pair()
    host.calls[0] = replace(host.calls[0], launch=None)
    with pytest.raises(InputError, match="launch: is needed"):
        host.run("eager")
    host = pair()
    host.unknown = ["nothing"]
    with pytest.raises(InputError, match="'nothing' is no tensor; allowed: inbox, flag, out"):
        host.run("eager")
    with pytest.raises(InputError, match="must be of one size"):
        Window([torch.zeros(1), torch.zeros(2)])
    host = pair()
    host.windows["third"] = Window([torch.zeros(1)] * 3)
    with pytest.raises(InputError, match="must have tensors for 1 to 8 devices, all alike"):
        host.run("eager")


def test_no_run_of_several_devices_is_a_proof() -> None:
    report = pair().run("eager")
    assert report.is_clean
    assert not report.is_proved
    assert report.runs[0].devices == 2
