# SPDX-License-Identifier: Apache-2.0
"""The Python that emitters write: operands, types, and registers that are kept in locals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitgen.emulator.program.builder import PARAM_BASE, Builder
from jitgen.emulator.program.table import Unsupported
from jitgen.emulator.program.translate import Program
from jitgen.emulator.program.types import NAMESPACE, converted, immediate, is_number
from tests.emulator.evaluate import evaluate, f32, s16, s32, s64

HEAD = """
.extern .shared .align 1024 .b8 dynamic[];
.visible .entry kernel(.param .u64 first, .param .align 64 .b8 second[128])
{{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .b128 %rq<2>;
    .shared .align 16 .b8 table[24];
    {body}
    ret;
}}
"""


def program(body: str) -> Program:
    return Program(HEAD.format(body=body))


@pytest.fixture
def builder() -> Builder:
    return Builder(program("mov.b32 %r0, 0;"), 0, {})


class TestOperands:
    @pytest.mark.parametrize(
        ("text", "type_name", "value"),
        [
            ("12", "u32", np.uint32(12)),
            ("-1", "b32", np.uint32(0xFFFFFFFF)),
            ("-1", "s64", np.int64(-1)),
            ("0x1FU", "u16", np.uint16(31)),
            ("0b101", "u32", np.uint32(5)),
            ("017", "u32", np.uint32(15)),
            ("0f3F800000", "f32", np.float32(1)),
            ("0f3F800000", "b32", np.uint32(0x3F800000)),
            ("0d3FF8000000000000", "f64", np.float64(1.5)),
            ("0d3FF8000000000000", "f32", np.float32(1.5)),
            ("0.5", "f32", np.float32(0.5)),
            ("1e3", "f64", np.float64(1000)),
            ("WARP_SZ", "u32", np.uint32(32)),
            ("1", "pred", np.True_),
        ],
    )
    def test_constants(self, text: str, type_name: str, value: Any) -> None:
        found = immediate(text, type_name)

        assert found == value
        assert found.dtype == value.dtype

    @pytest.mark.parametrize("text", ["0x", "12z", "-", "0f1", "1.2.3", "09"])
    def test_what_is_no_constant(self, text: str) -> None:
        with pytest.raises(Unsupported, match="operand"):
            immediate(text, "u32")


def test_nothing_is_no_number() -> None:
    assert [is_number(text) for text in ("", "-1", ".5", "7", "WARP_SZ", "%r1")] == [
        *(False, True, True, True, True, False)
    ]

    def test_symbols_stand_for_addresses(self, builder: Builder) -> None:
        assert builder.value("table+8", "u32") == "U4(f.cta.base + 1032)"
        assert builder.value("dynamic", "u64") == "U8(f.cta.base + 2048)"
        assert builder.value("second+4", "b64") == f"U8({PARAM_BASE + (1 << 16) + 4})"
        assert builder.address("[first+4]") == f"U8({PARAM_BASE + 4})"

    def test_addresses(self, builder: Builder) -> None:
        assert builder.address("[%r1]") == "r1"
        assert builder.address("[%r1+-8]") == "(r1 + U4_fffffff8)"
        with pytest.raises(Unsupported, match="address"):
            builder.address("[%r1, {%r2}]")

    def test_a_register_of_128_bits_is_a_vector_of_two(self, builder: Builder) -> None:
        low, high = builder.names("%rq1")

        assert builder.register(low)[0] == builder.register(high)[0] == "q"
        assert builder.names("{%rq1, %r1}") == [low, high, "%r1"]


class TestTypes:
    @pytest.mark.parametrize(
        ("have", "want", "bits", "result"),
        [
            ("U4", "I4", 0xFFFFFFFF, -1),
            ("U4", "F4", 0x3F800000, 1.0),
            ("U4", "I2", 0x18000, -0x8000),
            ("I2", "U4", -2, 0xFFFFFFFE),
            ("U2", "U8", 0xFFFF, 0xFFFF),
            ("F2", "U4", 1.0, 0x3C00),
            ("U8", "F4", 0x123F800000, 1.0),
            ("bool", "U4", True, 1),
        ],
    )
    def test_bits_as_another_type(self, have: str, want: str, bits: Any, result: Any) -> None:
        value = np.array([bits], NAMESPACE.get(have, bool))
        found = eval(converted("value", have, want), NAMESPACE | {"value": value})  # noqa: S307

        assert found.tolist() == [result]
        assert found.dtype == NAMESPACE[want]


class TestLocals:
    def test_a_guarded_definition_keeps_the_other_threads(self) -> None:
        found = evaluate(
            "setp.lt.s32 %p1, %r1, 2; @%p1 mov.b32 %r2, 7; @!%p1 add.s32 %r3, %r2, 1;",
            r1=s32(1, 2, 3),
            r2=s32(20, 30, 40),
            r3=s32(0, 0, 0),
        )

        assert found["r2"].tolist() == [7, 30, 40]
        assert found["r3"].tolist() == [0, 31, 41]

    def test_a_guard_that_all_threads_agree_on(self) -> None:
        found = evaluate("setp.eq.s32 %p1, 3, 3; @!%p1 mov.b32 %r1, 7;", r1=s32(1, 2))

        assert found["r1"].tolist() == [1, 2]
        assert found["p1"].tolist() == [True, True]

    def test_a_moved_register_does_not_change_with_its_origin(self) -> None:
        """A local is a view of its row, which is written back in the same block."""
        found = evaluate(
            "mov.b32 %r1, %r2; mov.b32 %r2, %r3; mov.b32 %r3, %r1;",
            r2=s32(1, 2),
            r3=s32(3, 4),
        )

        assert [found[name].tolist() for name in ("r1", "r2", "r3")] == [[1, 2], [3, 4], [1, 2]]

    def test_the_same_value_in_all_threads_fills_the_row(self) -> None:
        found = evaluate(
            "mov.b32 %r1, 5; add.s32 %r2, %r1, %r1; mov.b32 %r3, 0f3F800000; "
            "add.f32 %r4, %r3, %r5;",
            r5=f32(1, 2, 3),
        )

        assert found["r2"].tolist() == [10, 10, 10]
        assert found["r4"].tolist() == f32(2, 3, 4).tolist()

    def test_narrow_results_are_extended_by_their_type(self) -> None:
        found = evaluate(
            "cvt.s8.s32 %r1, %r5; cvt.u8.u32 %r2, %r5; cvt.s64.s32 %rd1, %r5;", r5=s32(255, 1)
        )

        assert found["r1"].tolist() == s32(-1, 1).tolist()
        assert found["r2"].tolist() == [255, 1]
        assert found["rd1"].tolist() == s64(255, 1).tolist()

    def test_halves_of_128_bits(self) -> None:
        found = evaluate(
            "{ .reg .b128 w; mov.b128 w, {%rd1, %rd2}; mov.b128 {%rd3, %rd4}, w; }",
            rd1=s64(1, 2),
            rd2=s64(3, 4),
        )

        assert (found["rd3"].tolist(), found["rd4"].tolist()) == ([1, 2], [3, 4])

    def test_16_bits(self) -> None:
        found = evaluate("add.s16 %rs1, %rs2, -3;", rs2=s16(1, 5))

        assert found["rs1"].tolist() == s16(-2, 2).tolist()


class TestWritingBack:
    def test_what_one_block_alone_names_stays_there(self) -> None:
        made = program("add.s32 %r1, 1, 2; add.s32 %r2, %r1, 3; bar.sync 0; add.s32 %r4, %r2, 5;")
        (_, row), (_, used) = made.row("%r1"), made.row("%r2")

        assert f"r[{row}, s]" not in made.python
        assert f"r[{used}, s] = r{used}" in made.python

    def test_a_loop_keeps_what_it_reads_again(self) -> None:
        made = program("$again: add.s32 %r1, %r1, 1; setp.lt.s32 %p1, %r1, 9; @%p1 bra $again;")
        row = made.row("%r1")[1]

        assert f"r{row} = r[{row}, s].copy()" in made.python
        assert f"r[{row}, s] = r{row}" in made.python

    def test_what_a_function_changes_is_loaded_again(self, builder: Builder) -> None:
        instruction = builder.program.code[0]
        builder.define("%r1", builder.value("%r1", "u32") + " + U4(1)", "u32", instruction)
        builder.flush(["%r1"])
        builder.do("change(r)")
        builder.forget(["%r1"])
        builder.do(f"see({builder.value('%r1', 'u32')})")
        row = builder.register("%r1")[1]

        lines = [line.strip() for line in builder.source().splitlines()]
        assert lines[3:] == [
            f"r{row} = r[{row}, s].copy()",
            f"r{row} = r{row} + U4(1)",
            f"r[{row}, s] = r{row}",
            "change(r)",
            f"r{row} = r[{row}, s]",
            f"see(r{row})",
            "return -1",
        ]
