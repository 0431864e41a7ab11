# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how the CTAs of a tile exchange the sums of their parts of K."""

from __future__ import annotations

from tests.compile.mutations import OTHER_WARPS, WAIT, Edit, Mutation, drop, swap

_SUM = "st.async"


def _split_k(name: str, edit: Edit, kind: str, *names: str) -> Mutation:
    """Return a mistake in a kernel whose tiles take two CTAs each."""
    return Mutation(name=name, program="split K", edit=edit, kind=kind, names=names)


EXCHANGE = (
    _split_k(
        "sums overwrite such as are not read",
        drop(f"expect_tx...({WAIT})...{_SUM}"),
        "race",
        _SUM,
        _SUM,
    ),
    _split_k(
        "no wait for the sums of the other CTA",
        drop(f"{_SUM}...({WAIT})...ld.shared.v4"),
        "fault",
        "gets 1 arrivals",
        "before that, uninitialised",
        "ld.shared.v4",
    ),
    _split_k(
        "one warp does not say that it has read the sums",
        swap("(mbarrier.arrive.shared::cluster.b64 _, [%r#], %r#;)", OTHER_WARPS),
        "deadlock",
        "every thread waits",
    ),
    _split_k(
        "sums are expected that are never sent",
        swap("shl.b32 %r#, %r#, (#);\nmbarrier.arrive.expect_tx", "11"),
        "deadlock",
        "every thread waits",
        "bytes pending",
    ),
    _split_k(
        "one piece of the sums is not sent",
        drop(f"({_SUM}...;)", count=1),
        "deadlock",
        "every thread waits",
        "bytes pending",
    ),
    _split_k(
        "sums are sent to the CTA that has them",
        swap("mapa.shared::cluster.u32 %r#, %r#, (0);", "1"),
        "deadlock",
        "every thread waits",
        "bytes pending",
    ),
    _split_k(
        "sums signal the CTA that sends them",
        swap("mapa.shared::cluster.u32 %r#, %r#, (0);", "1", count=1),
        "fault",
        "is not in the CTA that is written to",
    ),
    _split_k(
        "barriers are used before the other CTA has set them up",
        drop("(barrier.cluster.wait;)"),
        "race",
        "is used by a warp that is not ordered after",
    ),
    _split_k(
        "a CTA exits while the other one says that it has read",
        drop(f"xor.b32 %r#, %r#, 1;...({WAIT})...cp.async.bulk.wait_group.read 0;\nbra.uni"),
        "exit",
        "may exit before",
        "mbarrier.arrive.shared::cluster",
    ),
)
"""Mistakes in a kernel with split_k."""
