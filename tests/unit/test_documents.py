# SPDX-License-Identifier: Apache-2.0
"""Documents and text of unknown origin: bounded when parsed, escaped when shown."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import time
import tomllib
from pathlib import Path

import pytest

from jitgen.cli.output import Column, Output
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import ConfigError, PlanError
from jitgen.plans import load
from jitgen.support.documents import BadDocument, parse_json, parse_toml, read_bounded
from jitgen.support.text import json_safe, printable, shown
from jitgen.support.values import parse_size

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u200b"


class TestJson:
    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            (b"[" * 500_000, "nests deeper"),
            (b'{"a":' * 200_000, "nests deeper"),
            (b"[NaN]", "NaN, which is no number"),
            (b"[-Infinity]", "-Infinity, which is no number"),
            (b"1e400", "too large: 1e400"),
            (b"9" * 5000, "an integer of 5000 digits"),
            (b"[" + b"9" * 900_000 + b"]", "an integer of 900000 digits"),
            (b'"' + b'\\"' * 400_000, "no JSON: Unterminated"),
            (b'"' * 900_000, "no JSON"),
            (b"\xff", "no JSON"),
            (b"", "no JSON"),
            (b" " * (2**20 + 1), "bytes, and 1048576 are the most"),
            (b"[" + b"[]," * 340_000 + b"0]", "values, and 524,288 are the most"),
        ],
        ids=lambda value: repr(value[:8]) if isinstance(value, bytes) else "",
    )
    def test_refused_quickly_with_one_line(self, data: bytes, complaint: str) -> None:
        """These used to end in RecursionError, in NaN, or in minutes of arithmetic."""
        start = time.process_time()
        with pytest.raises(BadDocument, match=complaint) as caught:
            parse_json(data)

        assert time.process_time() - start < 1
        assert "\n" not in str(caught.value)

    def test_what_may_stand_in_a_document(self) -> None:
        """Brackets in strings do not count, and 64-bit numbers fit."""
        value = {
            "text": "[{" * 100,
            "n": -(2**63),
            "x": 1.5e-7,
            "deep": json.loads("[" * 30 + "]" * 30),
        }

        assert parse_json(json.dumps(value).encode()) == value

    def test_the_callers_stack_does_not_count(self) -> None:
        """
        A good document is good however deep the caller is: a RecursionError there used to be taken
        for damage, and the entry was thrown away.
        """

        def at_depth(frames: int) -> object:
            return at_depth(frames - 1) if frames else parse_json(b'{"a": [1]}')

        outcomes = set()
        for frames in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
            try:
                outcomes.add(str(at_depth(frames)))
            except RecursionError:
                outcomes.add("the stack is full")

        assert outcomes == {"{'a': [1]}", "the stack is full"}


class TestToml:
    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            (b"a=" + b"[" * 200_000, "nests deeper"),
            (b"a." * 100_000 + b"b=1", "more than 64 dots"),
            (b'"="' + b".a" * 100_000 + b"=1", "more than 64 dots"),
            (b"[" + b"a." * 100_000 + b"b]", "more than 64 dots"),
            (b"a=" + b"1" * 5000, "an integer of more than 100 digits"),
            (b"a=" + b"1" * 40, "an integer of more than 20 digits"),
            (b"a=0x" + b"f" * 5000, "an integer of more than 20 digits"),
            (b"a=[" + b"1_" * 900 + b"1]", "an integer of more than 100 digits"),
            (b"a=nan", "nan, which is no number"),
            (b"a=-inf", "-inf, which is no number"),
            (b"a=1e400", "too large: 1e400"),
            (b"#" + b"]" * 500 + b"\na=" + b"[" * 500, "nests deeper"),
            (b"b=']]]]" + b"]" * 500 + b"'\na=" + b"[" * 500, "nests deeper"),
            (b'b="""\n]]]]' + b"]" * 500 + b'\n"""\na=' + b"[" * 500, "nests deeper"),
            (b"[" + b"a." * 40 + b"b]", "nests deeper"),
            (b"[[a]]\n" * 170_000, "values, and 65,536 are the most"),
            (b"a=[" + b"{}," * 300_000 + b"]", "values, and 65,536 are the most"),
            (b'a="""' + rb"\"" * 100_000 + b"\\", "no TOML"),
            (rb'"""\"' * 50_000 + b"\\", "no TOML"),
            (b"a='" + b'"""\\' * 50_000, "no TOML"),
            (b"a=\xff", "no TOML"),
            (b"a=1979-99-99", "no TOML"),
            (b"#" * 2**20 + b"#", "are the most"),
        ],
        ids=lambda value: repr(value[:8]) if isinstance(value, bytes) else "",
    )
    def test_refused_quickly_with_one_line(self, data: bytes, complaint: str) -> None:
        """
        Dotted names used to take memory by the square of their length: gigabytes for 400 KB. And
        brackets in comments and strings counted, so that a comment hid a thousand levels.
        """
        start = time.process_time()
        with pytest.raises(BadDocument, match=complaint) as caught:
            parse_toml(data)

        assert time.process_time() - start < 1
        assert "\n" not in str(caught.value)

    def test_what_may_stand_in_a_document(self) -> None:
        """Brackets, dots and digits in strings and comments do not count."""
        text = """
            # [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ 1........................... "
            a = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ \\" # ........................"
            b = 'it is [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ \\'
            c = \"\"\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ "" \\\"\"\" # \"\"\"\"\"
            d = '''[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ \\ ''''
            e = [[[1, 2.5, 1979-05-27]]]
        """

        assert parse_toml(text.encode()) == tomllib.loads(text)

    def test_nothing_hides_what_is_deep(self) -> None:
        """Whatever stands before it, in strings and comments that end, or do not."""
        draw = random.Random(7)
        parts = [
            '"',
            "'",
            '"""',
            "'''",
            "\\",
            "#",
            "\n",
            "[",
            "]",
            "{",
            "}",
            "=",
            "a",
            ".",
            ",",
            " ",
        ]
        parts += ['a="b"\n', "c='d'#]\n", 'e="""\n"""\n', '"\\\\"', '\\"', "\r\n"]
        deep = 0
        for _ in range(3000):
            head = "".join(draw.choices(parts, k=draw.randrange(12)))
            with pytest.raises(BadDocument):  # and never RecursionError
                parse_toml(f"{head}\nzz={'[' * 2000}".encode())
            try:
                tomllib.loads(f"{head}\nzz=1")
            except ValueError:
                continue
            deep += 1
        assert deep > 100, "many of them were good but for what is deep"

    def test_the_callers_stack_does_not_count(self) -> None:
        """A good document is good however deep the caller is."""

        def at_depth(frames: int) -> object:
            return at_depth(frames - 1) if frames else parse_toml(b"a = [[[[[[[[1]]]]]]]]")

        assert at_depth(sys.getrecursionlimit() - 250) == {"a": [[[[[[[[1]]]]]]]]}


class TestFiles:
    def test_a_sparse_file_is_not_read(self, tmp_path: Path) -> None:
        """A file of a terabyte costs its author nothing on the disk."""
        path = tmp_path / "sparse"
        with path.open("wb") as stream:
            stream.truncate(2**40)

        with pytest.raises(BadDocument, match=r"1099511627776 bytes"):
            read_bounded(path)

    def test_a_pipe_is_read_up_to_the_limit(self, tmp_path: Path) -> None:
        read, write = os.pipe()
        with os.fdopen(write, "wb") as stream:
            stream.write(b"x" * 1000)
        assert read_bounded(f"/dev/fd/{read}") == b"x" * 1000
        os.close(read)

        with pytest.raises(BadDocument, match="more than the 1048576 bytes"):
            read_bounded("/dev/zero")


class TestPlans:
    def test_combinations_are_counted_before_they_are_made(self, tmp_path: Path) -> None:
        """Six lists of 15 used to be 9 million problems, each searched for its kernels."""
        path = tmp_path / "plan.toml"
        sizes = ", ".join(map(str, range(1, 301)))
        path.write_text(
            "[[problems]]\nlayout = ['ragged', 'masked', 'contiguous']\n"
            f"groups = [{sizes}]\nrows_per_group = [{sizes}]\n"
            "matrix = { n = 128, k = 128 }\n"
        )

        with pytest.raises(PlanError, match="270,000 combinations, and 1,000 are the most"):
            load(path)

    def test_a_pipe_without_a_writer(self, tmp_path: Path) -> None:
        """Opening it waited for ever."""
        path = tmp_path / "plan.toml"
        os.mkfifo(path)

        with pytest.raises(PlanError, match="problems must be a list"):
            load(str(path))

    def test_the_file_is_named(self, tmp_path: Path) -> None:
        """A plan that nests a thousand levels behind a comment was a RecursionError of no file."""
        path = tmp_path / "plan.toml"
        path.write_text(f"# {']' * 1000}\nproblems = {'[' * 1000}")

        with pytest.raises(PlanError, match=f"^{path} is no TOML plan: it nests deeper than 32"):
            load(path)

    def test_values_are_cut_in_messages(self, tmp_path: Path) -> None:
        """An integer of 4,000 digits used to be printed whole."""
        path = tmp_path / "plan.toml"
        path.write_text(
            "[[problems]]\nlayout = 'ragged'\nrows_per_group = 1\nmatrix = { n = 1, k = 1 }\n"
            f"groups = -{'9' * 4000}\n"
        )

        with pytest.raises(PlanError) as caught:
            load(path)
        assert len(str(caught.value)) < 400


class TestWords:
    def test_long_numbers_in_a_kernel_name(self) -> None:
        """They used to be a ValueError of int()."""
        name = f"grouped_gemm_ragged_f32_f32_tensor_f32_t{'1' * 5000}x16x128_c1x1_acc1_cpu"

        with pytest.raises(ConfigError, match="is no kernel name"):
            GroupedGemmConfig.parse(name)

    def test_a_size_beyond_floats(self) -> None:
        """It used to be an OverflowError."""
        with pytest.raises(ValueError, match="a size such as"):
            parse_size("9" * 400)

    @pytest.mark.parametrize(
        "value",
        ["x" * 10**6, list(range(10**5)), 10**5000, {"a": {"b": {"c": {"d": {}}}}}],
        ids=["text", "list", "integer", "nested"],
    )
    def test_shown_is_short(self, value: object) -> None:
        assert len(shown(value)) < 300


class TestTerminal:
    def test_escapes_are_shown(self) -> None:
        """Titles, colours, and letters that reorder or hide what is beside them."""
        text = printable(ESCAPES)

        assert text.isprintable()
        assert text == r"\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u200b"
        assert printable("Grüße, 核") == "Grüße, 核"
        assert printable("a\nb\tc", keep="\n") == "a\nb\\tc"

    def test_json_keeps_its_meaning(self) -> None:
        document = {"name": ESCAPES + "\U000e0001" + "\ud800", "line": "a\nb"}
        text = json_safe(json.dumps(document, ensure_ascii=False, indent=2))

        assert all(line.isprintable() for line in text.splitlines())
        assert json.loads(text) == document

    def test_every_way_of_speaking(self) -> None:
        """Names from an entry used to reach the terminal as they were."""
        data, talk = io.StringIO(), io.StringIO()
        output = Output(is_json=False, stdout=data, stderr=talk)
        output.line(ESCAPES)
        output.fields([("name", ESCAPES)])
        output.table([Column("NAME")], [(f"{ESCAPES}\nforged line",)])
        output.note(ESCAPES)
        output.warn(ESCAPES)
        output.error("Error", ESCAPES)
        with output.progress(1, "work") as progress:
            progress.advance(ESCAPES)

        lines = (data.getvalue() + talk.getvalue()).splitlines()
        assert len(lines) == 8
        assert all(line.isprintable() for line in lines)

    def test_warnings_of_the_library(self, caplog: pytest.LogCaptureFixture) -> None:
        from jitgen.events import warn_once

        warn_once("hostile", "a name: %s", ESCAPES)

        assert "\x1b" not in caplog.text
        assert r"\x1b]0;title" in caplog.text
