# SPDX-License-Identifier: Apache-2.0
"""Bulk copies, reductions and tensor copies to and from the memory of a peer."""

from __future__ import annotations

import pytest
import torch

from jitgen.emulator.formats.tensor_map import ELEMENT_TYPES, TensorMap, encode
from tests.emulator.devices import Host, kernel, words
from tests.emulator.mutation import Mutation, assert_found, by_name

WORDS = 32

START = """
.shared .align 128 .b8 box[128];
.shared .align 8 .b8 bar[8];
ld.param.b64 %rd1, [inbox];
ld.param.b64 %rd2, [flag];
mov.u32 %r1, %tid.x;
mov.u32 %r20, box;
mov.u32 %r21, bar;
shl.b32 %r22, %r1, 2;
add.u32 %r22, %r22, %r20;
setp.ne.u32 %p1, %r1, 0;
"""
FILL = """
ld.param.b32 %r2, [value];
add.u32 %r2, %r2, %r1;
st.shared.b32 [%r22], %r2;
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 bra $END;
"""
COPY = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r20], 128;\n"
REDUCE = COPY.replace("cp.async.bulk.global", "cp.reduce.async.bulk.global").replace(
    "bulk_group", "bulk_group.add.u32"
)
TENSOR = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {0, 1}], [%r20];\n"
GROUP = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"
RAISE = "red.release.sys.global.add.u32 [%rd2], 1;\n$END:\n"

SEND = START + FILL + COPY + GROUP + RAISE
REDUCE_SEND = SEND.replace(COPY, REDUCE)
TENSOR_SEND = SEND.replace(COPY, TENSOR)

RECEIVE = """
ld.param.b64 %rd3, [out];
ld.param.b32 %r3, [number];
$WAIT:
ld.acquire.sys.global.b32 %r5, [%rd2];
setp.ne.u32 %p2, %r5, %r3;
@%p2 bra $WAIT;
"""
READ = """
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd5, %rd1, %rd4;
ld.global.b32 %r6, [%rd5];
"""
KEEP = """
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd5, %rd3, %rd4;
st.global.b32 [%rd5], %r6;
"""
TAKE = START + RECEIVE + READ + KEEP

PROXY = "fence.proxy.async;\n"
TENSOR_LOAD = """
@%p1 bra $LOADED;
mbarrier.init.shared::cta.b64 [%r21], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r21], 128;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r20], [map, {0, 1}], [%r21];
$LOADED:
bar.sync 0;
$LOADING:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r21], 0;
@!%p3 bra $LOADING;
ld.shared.b32 %r6, [%r22];
"""
PUT = """
ld.param.b32 %r2, [value];
add.u32 %r2, %r2, %r1;
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd5, %rd1, %rd4;
st.global.b32 [%rd5+128], %r2;
bar.sync 0;
@%p1 bra $END;
"""
OFFER = START + PUT + RAISE
PULL = START + RECEIVE + PROXY + TENSOR_LOAD + KEEP
"""One writes to its own second row and raises the peer's flag; the peer copies it from there."""

PARAMS = [".u64 inbox", ".u64 flag", ".align 64 .b8 map[128]"]


def tensor_map(address: int) -> bytes:
    """Return a map of two rows of `WORDS` words, a row to a box."""
    return encode(
        TensorMap(
            address=address,
            element=next(x for x in ELEMENT_TYPES if x.name == "u32"),
            sizes=(WORDS, 2),
            strides=(4 * WORDS,),
            box=(WORDS, 1),
            element_strides=(1, 1),
            swizzle=0,
            fills_nan=False,
            is_interleaved=False,
        )
    )


def run(
    send: str, receive: str, *, senders: int = 1, pulls: bool = False
) -> tuple[list[str], list[int]]:
    """
    Let devices send to the last one; return what is found, and what it received.

    Args:
        send: The kernel of each sender.
        receive: That of the last device.
        senders: Devices but the last.
        pulls: Each sender writes to its own memory, and the last device copies from the first.
    """
    host = Host(senders + 1)
    inbox, flag = host.window("inbox", 2 * WORDS), host.window("flag", 1)
    last = senders
    for device in range(senders):
        address = inbox.address(of=device if pulls else last, on=device)
        host.call(
            device,
            kernel(send, "send", [*PARAMS, ".u32 value"]),
            {
                "inbox": address,
                "flag": flag.seen(of=last, on=device),
                "map": tensor_map(address),
                "value": 100 + 1000 * device,
            },
        )
    address = inbox.address(of=0 if pulls else last, on=last)
    out = torch.zeros(WORDS, dtype=torch.int32)
    host.call(
        last,
        kernel(receive, "receive", [*PARAMS, ".u64 out", ".u32 number"]),
        {
            "inbox": address,
            "flag": flag.tensors[last],
            "map": tensor_map(address),
            "out": out,
            "number": senders,
        },
    )
    return host.found("all"), words(out)


SECOND_ROW = READ.replace("ld.global.b32 %r6, [%rd5]", "ld.global.b32 %r6, [%rd5+128]")
ROW = [100 + i for i in range(WORDS)]


def test_a_bulk_copy_to_a_peer() -> None:
    assert run(SEND, TAKE) == ([], ROW)


def test_a_tensor_copy_to_a_peer() -> None:
    assert run(TENSOR_SEND, TAKE.replace(READ, SECOND_ROW)) == ([], ROW)


def test_reductions_to_a_peer() -> None:
    assert run(REDUCE_SEND, TAKE) == ([], ROW)


ATOMIC = "red.relaxed.sys.global.add.u32 [%rd5], %r2;\n"
RED_SEND = REDUCE_SEND.replace(
    START + FILL + REDUCE + GROUP,
    START + PUT.replace("st.global.b32 [%rd5+128], %r2;\n", ATOMIC),
)


def test_reductions_by_several_devices() -> None:
    """Those of bulk copies are relaxed at .gpu, and so atomic among threads of one device only."""
    found, _ = run(REDUCE_SEND, TAKE, senders=3)
    assert_found(found, ("race", "update", "inbox", "at .gpu and .gpu neither makes the other"))
    total = sum(100 + 1000 * device for device in range(3))
    assert run(RED_SEND, TAKE, senders=3) == ([], [total + 3 * i for i in range(WORDS)])
    assert_found(
        run(RED_SEND.replace("red.relaxed.sys", "red.relaxed.gpu"), TAKE, senders=3)[0],
        ("race", "update", "inbox", "at .gpu and .gpu"),
    )


def test_a_tensor_copy_from_a_peer() -> None:
    assert run(OFFER, PULL, pulls=True) == ([], ROW)


MISTAKES = [
    # "cp.async.bulk.wait_group": .read tells that the source was read
    Mutation("read, and perhaps not written", "wait_group 0", "wait_group.read 0",
             ("race", "read of", "inbox", "bulk writes")),
    Mutation("no wait", "cp.async.bulk.wait_group 0;\n", "", ("race", "inbox", "bulk writes")),
    Mutation("a group that stays open", GROUP,
             "cp.async.bulk.wait_group 0;\ncp.async.bulk.commit_group;\n",
             ("race", "inbox", "bulk writes")),
    Mutation("no proxy fence of what is sent", "fence.proxy.async.shared::cta;\n", "",
             ("proxy", "shared memory")),
    Mutation("a flag at .gpu", "red.release.sys", "red.release.gpu", ("race", "inbox")),
    Mutation("a relaxed flag", "red.release.sys", "red.relaxed.sys", ("race", "inbox")),
    Mutation("a relaxed poll", "ld.acquire.sys", "ld.relaxed.sys", ("race", "inbox")),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["copy", "reduction", "tensor"])
@pytest.mark.parametrize("mistake", MISTAKES, ids=by_name)
def test_mistakes_of_copies_to_a_peer(mistake: Mutation, kind: str) -> None:
    send = {"copy": SEND, "reduction": REDUCE_SEND, "tensor": TENSOR_SEND}[kind]
    take = TAKE.replace(READ, SECOND_ROW) if kind == "tensor" else TAKE
    edited = send.replace(mistake.old, mistake.new), take.replace(mistake.old, mistake.new)
    assert edited != (send, take)
    assert_found(run(*edited)[0], mistake.found)


PULLED = [
    Mutation("no proxy fence", PROXY, "", ("proxy", "inbox of device 0")),
    Mutation("a relaxed poll", "ld.acquire.sys", "ld.relaxed.sys", ("race", "inbox of device 0")),
    Mutation("a flag at .gpu", "red.release.sys", "red.release.gpu", ("race", "inbox of device 0")),
    Mutation("the other row", "[map, {0, 1}]", "[map, {0, 2}]", ("wrong",)),
]


@pytest.mark.parametrize("mistake", PULLED, ids=by_name)
def test_mistakes_of_copies_from_a_peer(mistake: Mutation) -> None:
    edited = [body.replace(mistake.old, mistake.new) for body in (OFFER, PULL)]
    assert edited != [OFFER, PULL]
    found, received = run(*edited, pulls=True)
    assert_found(found + ["wrong"] * (received != ROW), mistake.found)
