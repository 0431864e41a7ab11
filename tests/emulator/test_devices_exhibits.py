# SPDX-License-Identifier: Apache-2.0
"""
Weak spots of published protocols between devices, made anew in small kernels: each is found, and
beside it stands what is right. Where they come from is in `docs/emulator-devices.md`.
"""

from __future__ import annotations

import pytest
import torch

from jitgen.errors import InputError
from tests.emulator.devices import Host, kernel, words
from tests.emulator.mutation import Mutation, assert_found, by_name

WORDS = 32
BYTES = 4 * WORDS
PARAMS = [
    ".u64 mine",
    ".u64 inbox",
    ".u64 peer",
    ".u64 flag",
    ".u64 raised",
    ".u64 state",
    ".u64 out",
]
"""The own words, the own inbox and the peer's, the own flag and the peer's, what the device counts,
and the result."""

START = """
.shared .align 128 .b8 box[128];
.shared .align 8 .b8 bar[8];
ld.param.b64 %rd1, [mine];
ld.param.b64 %rd2, [inbox];
ld.param.b64 %rd3, [peer];
ld.param.b64 %rd4, [flag];
ld.param.b64 %rd5, [raised];
ld.param.b64 %rd6, [state];
ld.param.b64 %rd7, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd8, %r1, 4;
add.u64 %rd9, %rd1, %rd8;
add.u64 %rd12, %rd7, %rd8;
mov.u32 %r20, box;
mov.u32 %r21, bar;
setp.eq.u32 %p1, %r1, 0;
"""
ROUND = """
ld.global.b32 %r2, [%rd6];
add.u32 %r2, %r2, 1;
"""
"""%r2: the round, from 1."""

BANK = """
and.b32 %r3, %r2, 1;
mul.wide.u32 %rd13, %r3, 128;
add.u64 %rd10, %rd2, %rd8;
add.u64 %rd10, %rd10, %rd13;
add.u64 %rd11, %rd3, %rd8;
add.u64 %rd11, %rd11, %rd13;
"""
"""%rd10, %rd11: the thread's word of the inbox and of the peer's, in the bank of the round."""

PUSH = """
ld.global.b32 %r4, [%rd9];
add.u32 %r4, %r4, %r2;
st.global.b32 [%rd11], %r4;
"""
RAISE = """
bar.sync 0;
@%p1 st.release.sys.global.b32 [%rd5], %r2;
"""
WAIT = """
@!%p1 bra $SEEN;
$WAIT:
ld.acquire.sys.global.b32 %r5, [%rd4];
setp.lt.u32 %p2, %r5, %r2;
@%p2 bra $WAIT;
$SEEN:
bar.sync 0;
"""
"""Until the round or a later one: the peer may be a round ahead."""

READ = """
ld.global.b32 %r6, [%rd10];
st.global.b32 [%rd12], %r6;
"""
COUNT = """
bar.sync 0;
@%p1 st.global.b32 [%rd6], %r2;
"""
PROXY = "fence.proxy.async.global;\n"
BULK = """
@!%p1 bra $LOADED;
mbarrier.init.shared::cta.b64 [%r21], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r21], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20], [%rd10], 128, [%r21];
$LOADED:
bar.sync 0;
$LOADING:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r21], 0;
@!%p3 bra $LOADING;
shl.b32 %r22, %r1, 2;
add.u32 %r22, %r22, %r20;
ld.shared.b32 %r6, [%r22];
st.global.b32 [%rd12], %r6;
"""
"""Thread 0 copies the bank to shared memory; its %rd10 is where the bank begins."""

EXCHANGE = START + ROUND + BANK + PUSH + RAISE + WAIT + READ + COUNT
BULK_EXCHANGE = EXCHANGE.replace(READ, PROXY + BULK)
PULL_EXCHANGE = BULK_EXCHANGE.replace(
    "st.global.b32 [%rd11], %r4", "st.global.b32 [%rd10], %r4"
).replace("[%r20], [%rd10]", "[%r20], [%rd11]")
"""Each puts its words into its own bank, and copies the peer's from there."""


def pair(*bodies: str, dependent: bool = False, rounds: int = 0) -> Host:
    """
    Return two devices with the same kernels.

    Args:
        bodies: One kernel after the other.
        dependent: All but the first may start early (PDL).
        rounds: More than 0: each call has the round as its state, so many calls.
    """
    host = Host(2)
    inbox, flag = host.window("inbox", 2 * WORDS), host.window("flag", 1)
    for device in range(2):
        peer = 1 - device
        mine = torch.arange(WORDS, dtype=torch.int32) + 1000 * device
        arguments: dict[str, object] = {
            "mine": mine,
            "inbox": inbox.tensors[device],
            "peer": inbox.seen(of=peer, on=device),
            "flag": flag.tensors[device],
            "raised": flag.seen(of=peer, on=device),
            "state": torch.zeros(1, dtype=torch.int32),
            "out": torch.zeros(WORDS, dtype=torch.int32),
        }
        for number, body in enumerate(bodies):
            is_dependent = dependent and number > 0
            text = kernel(body, f"kernel_{number}", PARAMS)
            host.call(device, text, arguments, is_dependent=is_dependent)
    return host


def outs(host: Host) -> list[list[int]]:
    """Return the results of the devices."""
    last = {call.device: call.arguments["out"] for call in host.calls}
    return [words(last[device]) for device in range(2)]  # type: ignore[arg-type]


def wanted(replays: int) -> list[list[int]]:
    return [[1000 * (1 - device) + i + replays for i in range(WORDS)] for device in range(2)]


RIGHT = {
    "loads": EXCHANGE,
    "bulk copies": BULK_EXCHANGE,
    "bulk copies from the peer": PULL_EXCHANGE,
}


@pytest.mark.parametrize("name", RIGHT)
def test_they_are_right(name: str) -> None:
    host = pair(RIGHT[name])
    assert host.found("all", replays=4) == []
    assert outs(host) == wanted(4)


ACQUIRES = "ld.acquire.sys"
MISTAKES = [
    # a flag that is polled relaxed, and then a bulk copy; "Release and Acquire Patterns"
    ("bulk copies", Mutation("a relaxed poll", ACQUIRES, "ld.relaxed.sys",
                             ("race", "read of", "inbox of device"))),
    ("bulk copies", Mutation("a volatile poll", f"{ACQUIRES}.global", "ld.volatile.global",
                             ("race", "read of", "inbox of device"))),
    ("bulk copies", Mutation("no proxy fence", PROXY, "",
                             ("proxy", "fence.proxy.async", "inbox of device"))),
    ("bulk copies", Mutation("a proxy fence of shared memory", PROXY,
                             "fence.proxy.async.shared::cta;\n", ("proxy", "inbox of device"))),
    ("bulk copies from the peer", Mutation("a relaxed poll, pulling", ACQUIRES, "ld.relaxed.sys",
                                           ("race", "read of", "inbox of device"))),
    ("bulk copies from the peer", Mutation("no proxy fence, pulling", PROXY, "",
                                           ("proxy", "inbox of device"))),
    ("bulk copies from the peer", Mutation("copies from the own bank", "[%r20], [%rd11]",
                                           "[%r20], [%rd10]", ("wrong",))),
    # one bank: the next round overwrites what the peer still reads; "Data races"
    ("loads", Mutation("one bank", "and.b32 %r3, %r2, 1;", "mov.u32 %r3, 0;",
                       ("race", "write of", "inbox", "the read by device"))),
    ("bulk copies", Mutation("one bank, copied", "and.b32 %r3, %r2, 1;", "mov.u32 %r3, 0;",
                             ("race", "write of", "inbox", "the read by device"))),
    ("bulk copies from the peer", Mutation("one bank, pulled", "and.b32 %r3, %r2, 1;",
                                           "mov.u32 %r3, 0;", ("race", "inbox", "device"))),
    # the peer may raise its flag for the next round before it was seen
    ("loads", Mutation("equality where a round may pass", "setp.lt.u32 %p2", "setp.ne.u32 %p2",
                       ("deadlock", "device"))),
    # the round is not counted on the device, so each replay has that of the first
    ("loads", Mutation("a replayed round", "ld.global.b32 %r2, [%rd6];", "mov.u32 %r2, 0;",
                       ("race", "inbox"))),
    ("bulk copies", Mutation("a replayed round, copied", "ld.global.b32 %r2, [%rd6];",
                             "mov.u32 %r2, 0;", ("race", "inbox"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=lambda x: getattr(x, "name", x))
def test_mistakes(name: str, mistake: Mutation) -> None:
    host = pair(mistake.edit(RIGHT[name]))
    found = host.found("quick,late-device-0", replays=4)
    found += ["wrong"] if outs(host) != wanted(4) else []
    assert_found(found, mistake.found)


# --- fences that are left to the end of a kernel -------------------------------------------------

EARLY = "griddepcontrol.wait;\n"
PUSHES = START + ROUND + BANK + PUSH
RAISES = START + EARLY + ROUND + RAISE + COUNT
TAKES = START + EARLY + "ld.global.b32 %r2, [%rd6];\n" + BANK + WAIT + READ
"""A kernel pushes, the next raises the flag and counts the round, the third waits and reads."""


@pytest.mark.parametrize("dependent", [False, True], ids=["serial", "PDL"])
def test_a_kernel_for_each_step(dependent: bool) -> None:
    host = pair(PUSHES, RAISES, TAKES, dependent=dependent)
    assert host.found("all", replays=4) == []
    assert outs(host) == wanted(4)


BOUNDARIES = [
    # "griddepcontrol": without the wait nothing is known of the grid before
    Mutation("the flag is raised before the wait for the grid", RAISES,
             RAISES.replace(EARLY, ""), ("race", "inbox")),
    # "Release and Acquire Patterns": the end of a kernel is no fence that a peer can see
    Mutation("the end of the kernel for a fence", "st.release.sys", "st.relaxed.sys",
             ("race", "inbox")),
    Mutation("the end of the kernel for a fence of all devices", "st.release.sys",
             "st.release.gpu", ("race", "inbox")),
    Mutation("what is read is taken for known", TAKES, TAKES.replace(ACQUIRES, "ld.relaxed.sys"),
             ("race", "inbox")),
]  # fmt: skip


@pytest.mark.parametrize("dependent", [False, True], ids=["serial", "PDL"])
@pytest.mark.parametrize("mistake", BOUNDARIES, ids=by_name)
def test_mistakes_at_the_end_of_a_kernel(mistake: Mutation, dependent: bool) -> None:
    bodies = (PUSHES, RAISES, TAKES)
    edited = [body.replace(mistake.old, mistake.new) for body in bodies]
    assert edited != list(bodies)
    found = pair(*edited, dependent=dependent).found("eager", replays=4)
    if mistake.new == RAISES.replace(EARLY, "") and not dependent:
        assert found == []
    else:
        assert_found(found, mistake.found)


# --- waits without a limit -----------------------------------------------------------------------

LIMITED = """
@!%p1 bra $SEEN;
mov.u64 %rd20, %globaltimer;
$WAIT:
ld.acquire.sys.global.b32 %r5, [%rd4];
setp.ge.u32 %p2, %r5, %r2;
@%p2 bra $TELL;
mov.u64 %rd21, %globaltimer;
sub.u64 %rd21, %rd21, %rd20;
setp.lt.u64 %p4, %rd21, 30000000000;
@%p4 bra $WAIT;
mov.u32 %r2, 0;
$TELL:
st.shared.b32 [%r20], %r2;
$SEEN:
bar.sync 0;
ld.shared.b32 %r2, [%r20];
setp.eq.u32 %p5, %r2, 0;
@%p5 bra $GONE;
"""
"""After 30 s the round is 0, which says that the peer is gone, and nothing is read."""


def test_a_wait_without_a_limit_never_ends_when_a_peer_is_gone() -> None:
    assert_found(pair(EXCHANGE).found("lost-device-1"), ("deadlock", "device 0 launch 0"))


def test_a_wait_with_a_limit_ends() -> None:
    body = EXCHANGE.replace(WAIT, LIMITED).replace(COUNT, f"$GONE:{COUNT}")
    host = pair(body)
    assert host.found("eager,lost-device-1,late-device-0", replays=2) == []
    assert outs(host) == wanted(2)
    for mode, replays in (("lost-device-1", 1), ("lost-device-1-from-2", 3)):
        lost = pair(body)
        assert lost.found(mode, replays=replays) == []
        states = [words(call.arguments["state"]) for call in lost.calls]  # type: ignore[arg-type]
        assert states == [[0], [replays]]


def test_a_launch_that_a_lost_device_does_not_have() -> None:
    """The device was not lost at all, and nothing said so."""
    told = "'lost-device-1-from-3' is about launch 3 of a device that has 3, counted from 0"
    with pytest.raises(InputError, match=told):
        pair(EXCHANGE).found("lost-device-1-from-3", replays=3)
