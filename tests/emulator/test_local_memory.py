# SPDX-License-Identifier: Apache-2.0
"""Local memory: each thread its own, by its own instructions and by generic addresses."""

from __future__ import annotations

import pytest

from jitgen.errors import MachineFault
from tests.emulator.program import run_ptx

HEAD = """
.local .align 16 .b8 depot[32];
mov.u32 %r1, %tid.x;
mov.b64 %rd1, depot;
"""


def test_each_thread_has_its_own() -> None:
    run = run_ptx(
        f"""{HEAD}
        st.local.v2.b32 [%rd1+8], {{%r1, 5}};
        bar.sync 0;
        ld.local.b64 %rd2, [%rd1+8];
        ld.local.u8 %r2, [depot+12];
        """,
        threads=64,
    )
    assert run.findings == []
    assert run.register("%rd2").tolist() == [5 << 32 | thread for thread in range(64)]
    assert run.register("%r2").tolist() == [5] * 64


def test_generic_addresses_and_guards() -> None:
    run = run_ptx(
        f"""{HEAD}
        setp.lt.u32 %p1, %r1, 3;
        cvta.local.u64 %rd2, %rd1;
        st.b32 [%rd2+4], 1;
        @%p1 st.b32 [%rd2+4], %r1;
        ld.b32 %r2, [%rd2+4];
        """
    )
    assert run.findings == []
    assert run.register("%r2").tolist() == [0, 1, 2, *[1] * 29]


def test_an_index_that_differs_by_thread() -> None:
    run = run_ptx(
        f"""{HEAD}
        and.b32 %r2, %r1, 7;
        mad.wide.u32 %rd2, %r2, 4, %rd1;
        st.local.v4.b32 [%rd1], {{0, 1, 2, 3}};
        st.local.v4.b32 [%rd1+16], {{4, 5, 6, 7}};
        ld.local.b32 %r3, [%rd2];
        """
    )
    assert run.register("%r3").tolist() == [thread % 8 for thread in range(32)]


def test_what_was_not_written() -> None:
    run = run_ptx(f"{HEAD}st.local.b32 [%rd1], 1;\nld.local.b64 %rd2, [%rd1];")
    assert run.findings == ["uninitialised"]


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        ("ld.local.b32 %r2, [%rd1+32];", "0x20, of 32 bytes, is out of bounds"),
        ("st.local.b64 [%rd1+4], %rd1;", "not a multiple of 8"),
        ("ld.local.b32 %r2, [%rd1-4];", "out of bounds"),
    ],
)
def test_faults(access: str, reason: str) -> None:
    with pytest.raises(MachineFault, match=reason):
        run_ptx(HEAD + access)
