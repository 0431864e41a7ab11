# SPDX-License-Identifier: Apache-2.0
"""Functions of PTX: parameters, results, names, returns, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.modes import random_mode
from jitgen.errors import MachineFault, UnsupportedPtx
from tests.emulator.program import BY_WARP, EAGER, run_ptx

LANES = np.arange(32)

LARGER = """
.func (.param .b32 result) larger(.param .b32 larger_0, .param .b32 larger_1)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [larger_0];
    ld.param.b32 %r2, [larger_1];
    setp.gt.u32 %p1, %r1, %r2;
    @%p1 bra $DONE;
    mov.b32 %r1, %r2;
$DONE:
    st.param.b32 [result], %r1;
    ret;
}
"""

CALL = """
{{ // callseq 0, 0
    .param .b32 param0;
    st.param.b32 [param0], {first};
    .param .b32 param1;
    st.param.b32 [param1], {second};
    .param .b32 retval0;
    call.uni (retval0), larger, (param0, param1);
    ld.param.b32 {target}, [retval0];
}}
"""


def call(target: str, first: str, second: str) -> str:
    return CALL.format(target=target, first=first, second=second)


@pytest.mark.parametrize("mode", [EAGER, BY_WARP, random_mode(3)], ids=lambda mode: mode.name)
def test_two_calls_of_one_function(mode: object) -> None:
    """The function's registers and labels are its own in each call, and the caller's stay."""
    body = f"mov.u32 %r1, %laneid;\nmov.u32 %r2, 7;{call('%r3', '%r1', '%r2')}"
    body += call("%r4", "%r3", "12")
    run = run_ptx(body, functions=LARGER, mode=mode)
    assert run.register("%r1").tolist() == LANES.tolist()
    assert run.register("%r3").tolist() == np.maximum(LANES, 7).tolist()
    assert run.register("%r4").tolist() == np.maximum(LANES, 12).tolist()
    assert run.findings == []


def test_a_function_that_calls_another() -> None:
    outer = f"""
    .visible .func (.param .b32 result) largest(.param .align 4 .b8 three[12])
    {{
        ld.param.v2.b32 {{%r1, %r2}}, [three];
        ld.param.b32 %r3, [three+8];
        .reg .b32 %r<6>;
        {call("%r4", "%r1", "%r2")}
        {call("%r5", "%r4", "%r3")}
        st.param.b32 [result], %r5;
        ret;
    }}
    """
    body = """
        mov.u32 %r1, %laneid;
        .param .align 4 .b8 param0[12];
        st.param.v2.b32 [param0], {5, %r1};
        st.param.b32 [param0+8], 9;
        .param .b32 retval0;
        call (retval0), largest, (param0);
        ld.param.b32 %r9, [retval0];
    """
    run = run_ptx(body, functions=LARGER + outer)
    assert run.register("%r9").tolist() == np.maximum(LANES, 9).tolist()


STORE = """
.func store()
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    mov.u32 %r1, %laneid;
    setp.ge.u32 %p1, %r1, 16;
    @%p1 ret;
    shl.b32 %r2, %r1, 2;
    st.shared.b32 [%r2+1024], %r1;
}
"""


def test_returns_of_some_threads_and_guarded_calls() -> None:
    """Lanes that return early, and those that do not call, go on behind the call."""
    body = """
        mov.u32 %r1, %laneid;
        setp.ge.u32 %p1, %r1, 4;
        @%p1 call.uni store, ();
        @!%p1 call store;
        mov.u32 %r2, 1;
    """
    run = run_ptx(body, functions=STORE)
    assert (run.register("%r2") == 1).all()
    stored = run.cluster.ctas[0].shared.bytes[1024 : 1024 + 64].view(np.uint32)
    assert stored.tolist() == list(range(16))


def test_widths_of_parameters() -> None:
    widths = """
    .func (.param .b64 wide) pass(.param .b8 a, .param .b16 b, .param .b64 c)
    {
        ld.param.u8 %rs1, [a];
        ld.param.u16 %rs2, [b];
        ld.param.b64 %rd2, [c];
        .reg .b16 %rs<4>;
        .reg .b64 %rd<4>;
        add.u16 %rs3, %rs1, %rs2;
        cvt.u64.u16 %rd1, %rs3;
        add.u64 %rd3, %rd1, %rd2;
        st.param.b64 [wide], %rd3;
        ret;
    }
    """
    body = """
        mov.u32 %r1, %laneid;
        cvt.u16.u32 %rs1, %r1;
        .param .b8 param0;
        st.param.b8 [param0], %rs1;
        .param .b16 param1;
        st.param.b16 [param1], 1000;
        .param .b64 param2;
        st.param.b64 [param2], 0x100000000;
        .param .b64 retval0;
        call.uni (retval0), pass, (param0, param1, param2);
        ld.param.b64 %rd1, [retval0];
    """
    run = run_ptx(body, functions=widths)
    assert run.register("%rd1").tolist() == (LANES + 1000 + 2**32).tolist()


ASSERT = ".extern .func __assertfail(.param .b64 a, .param .b64 b) .noreturn;\n"


def test_an_assertion_that_does_not_hold() -> None:
    body = """
        mov.u32 %r1, %laneid;
        setp.ge.u32 %p1, %r1, {};
        @!%p1 bra $OK;
        .param .b64 param0;
        st.param.b64 [param0], 0;
        call.uni __assertfail, (param0, param0);
        $OK:
    """
    assert run_ptx(body.format(32), functions=ASSERT).findings == []
    with pytest.raises(MachineFault, match="trap"):
        run_ptx(body.format(31), functions=ASSERT)


PRINT = ".extern .func (.param .b32 out) vprintf(.param .b64 text, .param .b64 values);"


def test_prints_are_left_out() -> None:
    """As the compiler writes them: the values are in local memory, and the result is ignored."""
    run = run_ptx(
        """
        .local .align 8 .b8 depot[8];
        mov.b64 %rd1, depot;
        cvta.local.u64 %rd2, %rd1;
        st.local.b32 [%rd1], 7;
        {
        .param .b64 param0;
        .param .b64 param1;
        .param .b32 result;
        st.param.b64 [param0], 1024;
        st.param.b64 [param1], %rd2;
        call.uni (result), vprintf, (param0, param1);
        ld.param.b32 %r1, [result];
        }
        """,
        functions=PRINT,
    )
    assert run.findings == []
    assert run.register("%r1").tolist() == [0] * 32


@pytest.mark.parametrize(
    ("functions", "body", "message"),
    [
        (".func again() { call again; ret; }", "call again;", "calls itself"),
        (".extern .func malloc(.param .b64 a);", "call malloc, (x);", "malloc, whose code"),
        ("", "call (x), %rd1, (y), prototype_0;", "whose code is not here"),
        (STORE, "call store, (x);", "takes other parameters"),
        (
            LARGER.replace("ld.param.b32 %r2, [larger_1]", "ld.param.b16 %rs2, [larger_1]"),
            call("%r1", "1", "2"),
            "nothing stored",
        ),
    ],
)
def test_what_is_refused(functions: str, body: str, message: str) -> None:
    with pytest.raises(UnsupportedPtx, match=message):
        run_ptx(body, functions=functions)
