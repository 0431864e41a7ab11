# SPDX-License-Identifier: Apache-2.0
"""PTX text to programs: parsing, blocks, places."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")

from jitgen.emulator.program.instruction import split_operands
from jitgen.emulator.program.lines import source_file, source_lines
from jitgen.emulator.program.parse import parse
from jitgen.emulator.program.table import rule_of
from jitgen.emulator.program.translate import Program, translate
from jitgen.errors import UnsupportedPtx

HEAD = """//
.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
"""

KERNEL = (
    HEAD
    + """
.visible .entry kernel(
    .param .align 64 .b8 first[128],
    .param .u32 second
)
.reqntid 64, 1, 1
{{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .shared .align 16 .b8 table[24];
{body}
    ret;
}}
"""
)


def program(body: str, source: str = "") -> Program:
    return Program(KERNEL.format(body=body), source)


def test_operands_are_split_outside_of_brackets() -> None:
    assert split_operands("{%r1, %r2}, [%rd1, {%r3, %r4}], 5") == [
        "{%r1, %r2}",
        "[%rd1, {%r3, %r4}]",
        "5",
    ]
    assert split_operands("") == []


class TestParsing:
    def test_parameters_and_shared_variables(self) -> None:
        module = parse(KERNEL.format(body=""))

        assert module.entry == "kernel"
        assert module.params == [("first", 128), ("second", 4)]
        assert module.shared["table"] == 1024
        assert module.shared["dynamic"] == module.shared_end == 2048

    def test_instructions_know_their_lines(self) -> None:
        text = KERNEL.format(body="    .loc 1 77 3\n$here:\n    @!%p1 add.s32 %r1,\n      %r2, 3;")
        (add, ret) = parse(text).code
        (line,) = [i for i, row in enumerate(text.split("\n"), 1) if "add.s32" in row]

        assert (add.op, add.parts, add.operands) == (
            "add.s32",
            ("add", "s32"),
            ("%r1", "%r2", "3"),
        )
        assert (add.guard, add.is_negated, add.line, add.source) == ("%p1", True, line, 77)
        assert (ret.op, ret.source, ret.index) == ("ret", 77, 1)

    def test_names_of_inline_assembly_are_local(self) -> None:
        scope = (
            "{{ .reg .pred P; AGAIN: setp.eq.s32 P, %r1, 0; @P bra DONE; bra.uni AGAIN; DONE: }}"
        )
        module = parse(KERNEL.format(body=scope.format() * 2))
        first, second = module.code[:3], module.code[3:6]

        assert first[0].operands[0] == first[1].guard != second[0].operands[0]
        assert module.labels[first[1].operands[0]] == 3
        assert module.labels[second[2].operands[0]] == 3
        assert module.class_of(first[1].guard) == module.class_of(second[1].guard) == "p"

    def test_a_branch_out_of_inline_assembly(self) -> None:
        module = parse(KERNEL.format(body="{ bra OUT; { bra IN; IN: } bra IN; } OUT: IN: "))

        assert [code.operands for code in module.code[:3]] == [("OUT",), ("IN@2",), ("IN",)]
        assert module.labels == {"IN@2": 2, "OUT": 3, "IN": 3}

    def test_ranges_of_registers_in_inline_assembly(self) -> None:
        module = parse(KERNEL.format(body="{ .reg .b64 t<2>; mov.b64 t1, %rd1; }"))

        assert module.class_of(module.code[0].operands[0]) == "q"
        assert module.code[0].text == "mov.b64 t1, %rd1"

    def test_registers_of_any_name(self) -> None:
        module = parse(KERNEL.format(body=".reg .b16 %odd<3>; .reg .b128 %w;"))

        names = ("%odd2", "%w", "%laneid")
        assert [module.class_of(name) for name in names] == ["h", "w", ""]

    def test_parameters_that_are_pointers_and_arrays(self) -> None:
        text = """.visible .entry kernel(
            .param .u64 .ptr .global .align 16 a, .param .u64 .ptr .align 1 b, .param .b32 c[3]
        ) { ret; }"""

        assert parse(text).params == [("a", 8), ("b", 8), ("c", 12)]

    def test_static_shared_memory_is_aligned(self) -> None:
        module = parse(KERNEL.format(body=".shared .b64 scalar; .shared .align 4 .b32 array[3];"))

        assert module.shared["scalar"] == 1024 + 24
        assert module.shared["array"] == 1024 + 32

    def test_local_memory_is_aligned(self) -> None:
        module = parse(KERNEL.format(body=".local .b32 scalar; .local .align 8 .b8 depot[64];"))

        assert module.local == {"scalar": 0, "depot": 8}
        assert module.local_end == 72

    def test_other_memory_is_refused_with_its_line(self) -> None:
        with pytest.raises(UnsupportedPtx, match=r"line 17: \.tex \.u32 texture"):
            parse(KERNEL.format(body="    .tex .u32 texture;"))

    def test_one_of_several_kernels(self) -> None:
        other = ".visible .entry other()\n{ exit; }\n"
        text = KERNEL.format(body="") + other

        assert [code.op for code in parse(text, "other").code] == ["exit"]
        with pytest.raises(UnsupportedPtx, match="kernel, other"):
            parse(text)


class TestUnknown:
    def test_every_unknown_opcode_is_named_when_the_program_is_made(self) -> None:
        with pytest.raises(UnsupportedPtx) as caught:
            program("frob.b32 %r1, %r2;\n wobble.sync 3;")

        assert len(caught.value.unknown) == 2
        assert "frob.b32 %r1, %r2" in str(caught.value)
        assert "line" in caught.value.unknown[1]

    def test_unknown_opcodes_and_modifiers_are_named_together(self) -> None:
        with pytest.raises(UnsupportedPtx) as caught:
            program("frob.b32 %r1, %r2;\n mov.u32 %r1, %unheard;\n ret;")

        assert [reason.count("unheard") for reason in caught.value.unknown] == [0, 2]

    @pytest.mark.parametrize(
        "body",
        [
            "add.s31 %r1, %r2, %r3;",
            "ld.global.fancy.b32 %r1, [%rd1];",
            "mov.u32 %r1, %unheard;",
            "mov.u32 %r1, nowhere;",
            "bra $nowhere;",
        ],
    )
    def test_what_an_emitter_does_not_know(self, body: str) -> None:
        with pytest.raises(UnsupportedPtx, match="line"):
            program(body)


class TestBlocks:
    BODY = """
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $end;
    bar.sync 0;
    add.s32 %r1, %r1, 1;
$end:
    add.s32 %r2, %r1, 1;
    """

    def test_branches_barriers_and_labels_cut(self) -> None:
        made = program(self.BODY)

        assert [(block.start, block.end) for block in made.blocks] == [
            (0, 2),
            (2, 3),
            (3, 4),
            (4, 6),
        ]
        assert made.whole_warp == [False, True, False, False]
        assert made.block_of("$end") == made.block_at(5) == 3

    def test_the_longest_prefix_wins(self) -> None:
        code = parse(KERNEL.format(body="bar.warp.sync -1; bar.sync 0;")).code

        assert rule_of(code[0]) is not rule_of(code[1])


class TestPlaces:
    SOURCE = "def outer():\n    def inner():\n        pass\n    inner()\n"

    def test_kernel_line_function_and_ptx(self) -> None:
        made = program(".loc 1 3 5\n add.s32 %r1, %r1, 1;\n.loc 1 4 5\n", self.SOURCE)

        assert made.place(0).startswith("kernel.py:3 (inner) | ptx:")
        assert made.place(0).endswith("add.s32 %r1, %r1, 1")
        assert (made.role(0), made.role(1)) == ("inner", "outer")

    def test_without_line_information(self) -> None:
        made = program("add.s32 %r1, %r1, 1;")

        assert made.place(0).startswith("ptx:")
        assert made.role(0) == "kernel"

    def test_what_the_compiler_could_not_place_counts_to_the_line_before(self) -> None:
        assert source_lines(".loc 1 7 0\n\n.loc 1 8 3\n.loc 1 99 0\n.loc 1 9 1") == [7, 7, 8, 8, 9]

    def test_inline_assembly_comes_from_the_line_that_holds_it(self) -> None:
        text = ".loc 1 7 2\n// begin inline asm\n.loc 1 8 2\nfence;\n// end inline asm\n.loc 1 9 2"

        assert source_lines(text) == [7, 7, 7, 7, 7, 9]

    def test_a_library_function_counts_to_where_it_was_inlined(self) -> None:
        text = ".loc 1 7 2\n.loc 2 50 1, function_name $L1, inlined_at 1 8 3\n.loc 2 51 1"

        assert source_lines(text) == [7, 8, 8]

    def test_the_file_is_that_of_the_first_location(self) -> None:
        files = '.file 1 "/lib/other.py"\n.file 2 "/home/one/theirs.py"\n'

        assert source_file(f".loc 2 7 2\n.loc 1 50 1\n{files}") == "/home/one/theirs.py"
        assert source_file(".loc 2 7 2\n") == source_file(files) == ""


def test_a_program_is_translated_once() -> None:
    text = KERNEL.format(body="")

    assert translate(text) is translate(text)
