# SPDX-License-Identifier: Apache-2.0
"""Pages of kernels: that nothing gets in, that lines are linked, and that they stay small."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitgen.errors import ResourceError
from jitgen.inspect import code, document, emulated, highlight, markup
from jitgen.inspect import page as pages
from jitgen.inspect.difference import between, rows
from jitgen.inspect.page import page
from tests.inspect_pages import EVIL, PTX, SASS, SOURCE, Page, kernel

SEEN = EVIL.replace("\u202e", r"\u202e")


def test_hostile_texts_stay_texts() -> None:
    """Wherever one comes from: names, sources, findings, devices, keys, notes."""
    read = Page(page(kernel()))
    read.check()

    assert read.words.count(SEEN) >= 20
    assert "\u202e" not in read.markup, "what reorders text is shown as an escape"
    assert SEEN in "".join(read.texts["title"])


def test_two_hostile_kernels() -> None:
    other = kernel(name=f"{EVIL} 2", listings=(code.source(SOURCE.replace("128", "64")),))
    read = Page(page(kernel(), other))
    read.check()

    assert [x["data-shows"] for x in read.all("button") if "data-shows" in x] == ["k0", "k1"]
    assert len(read.all("ins")) == len(read.all("del")) == 1


def test_a_kernel_with_nothing_known_has_a_page() -> None:
    speed = replace(kernel().speed, measurements=(), reasons=(), roofs=(), excluded="")
    nothing = {"resources": None, "shared": None, "tensor": None, "occupancy": None}
    bare = kernel(
        name="bare",
        speed=speed,
        emulation=None,
        entry={},
        notes=(),
        parts=(),
        listings=(code.source(SOURCE),),
        **nothing,
    )
    read = Page(page(bare))
    read.check()

    assert "Nothing was measured of it" in read.words
    assert "jitgen inspect --emulate" in read.words


def test_lines_are_linked_by_the_line_of_the_source() -> None:
    read = Page(page(kernel()))
    lines = [x for x in read.all("p") if "data-l" in x]
    source = [x for x in lines if "id" in x]

    assert [x["id"] for x in source] == [f"k0-{n}" for n in range(1, len(source) + 1)]
    assert {x["data-l"] for x in lines if "id" not in x} == {"8", "9"}
    assert [x.get("data-c") for x in source[7:9]] == ["1", "2"]
    assert [x.get("class") for x in source[7:9]] == [None, "never wrong"]
    ptx = {x["data-n"]: x.get("class") for x in lines if "id" not in x and "data-n" in x}
    assert ptx == {"8": None, "10": "never wrong", "11": "never"}


def test_templates_are_linked_to_their_lines() -> None:
    read = Page(page(kernel()))
    links = [x for x in read.all("a") if x.get("href") == "#k0-3"]

    assert len(links) == 1
    assert "Own lines are those that no included file makes" in read.words


def test_listings_keep_what_findings_count_by() -> None:
    """Lines of PTX keep their numbers, though what holds only line information is left out."""
    ptx, sass = code.ptx(PTX), code.sass(SASS, PTX)

    assert [(x.number, x.origin) for x in ptx.lines if x.origin] == [(8, 8), (10, 9), (11, 9)]
    assert not any(word in x.text for x in ptx.lines for word in (".loc", ".file", ".debug"))
    assert [(x.origin, x.operation) for x in sass.lines] == [
        (8, "FMUL"),
        (None, ""),
        (9, "STG"),
        (9, "EXIT"),
    ]
    assert sass.lines[0].text == "0000 FMUL R1, R2, 128"


@pytest.mark.parametrize(
    ("more_ptx", "more_sass", "origins"),
    [
        (["11 3", "12 3"], 2, [11, 12]),
        (["11 3", "12 3"], 3, [None] * 3),
        (["11 3"], 3, [11] * 3),
        ([], 1, [None]),
    ],
)
def test_warpgroup_mmas_find_their_lines(
    more_ptx: list[str], more_sass: int, origins: list[int | None]
) -> None:
    """The assembler says nothing of them: they come in the order of PTX, or from its only line."""
    wgmma = "wgmma.mma_async.sync.aligned.m64n8k32 ..."
    ptx = PTX + "\n".join(f"\t.loc\t1 {place}\n{wgmma}" for place in more_ptx)
    sass = SASS + "  /*0030*/  QGMMA.64x8x32 R24, gdesc[UR16], RZ ;\n" * more_sass
    found = code.sass(sass, ptx)

    assert [x.origin for x in found.lines if x.operation == "QGMMA"] == origins


@pytest.mark.parametrize("text", [SOURCE, PTX, SASS])
@pytest.mark.parametrize("language", [code.PYTHON, code.PTX, code.SASS, code.HOST])
def test_colours_change_no_letter(language: str, text: str) -> None:
    """Whatever the lexers make of it: line by line the same text."""
    lines = tuple(code.Line(text=row) for row in text.split("\n"))
    listing = code.Listing(language=language, title="", lines=lines)
    found = list(highlight.lines(listing))

    assert [html.unescape(re.sub(r"</?[a-z]+>", "", row)) for row in found] == [
        row.text.replace("\u202e", r"\u202e") for row in lines
    ]
    assert [html.unescape(row) for row in highlight.plain(listing)] == [
        row.text.replace("\u202e", r"\u202e") for row in lines
    ]


@settings(max_examples=50)
@given(st.text(max_size=20), st.text(max_size=20))
def test_a_string_is_never_markup(text: str, value: str) -> None:
    made = markup.tag("b", text, title=value)
    inside = Page(made)

    assert [name for name, _ in inside.elements] == ["b"]
    assert set(inside.elements[0][1]) == {"title"}
    assert not inside.errors


def test_machine_code_shows_its_operation() -> None:
    line = code.Line(text="0010 @!P0 UIADD3.X UR7, URZ, 0x1f, 0f", operation="UIADD3")
    listing = code.Listing(language=code.SASS, title="", lines=(line,))

    assert list(highlight.lines(listing)) == [
        "<i>0010</i> @!P0 <b>UIADD3.X</b> UR7, URZ, <u>0x1f</u>, 0f"
    ]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("QGMMA", "matrix"),
        ("HMMA", "matrix"),
        ("UTCQMMA", "matrix"),
        ("UTCBAR", "order"),
        ("UTMALDG", "copy"),
        ("LDS", "shared"),
        ("STSM", "shared"),
        ("LDG", "global"),
        ("STL", "spill"),
        ("SYNCS", "order"),
        ("FENCE", "order"),
        ("FFMA", "float"),
        ("F2FP", "convert"),
        ("I2F", "convert"),
        ("SHFL", "warp"),
        ("BRA", "control"),
        ("UIADD3", "integer"),
        ("NEW", "integer"),
    ],
)
def test_classes_of_instructions(operation: str, name: str) -> None:
    assert code.class_of(operation) == name
    assert code.class_title(name)


def test_a_page_that_is_too_large_loses_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what would be left is said to be too large, and where else to look."""
    whole = page(kernel())
    monkeypatch.setattr(pages, "MAX_BYTES", len(whole.encode()) - 1)
    plain = page(kernel())
    Page(plain).check()

    assert len(plain) < len(whole)
    monkeypatch.setattr(pages, "MAX_BYTES", 1000)
    with pytest.raises(ResourceError, match="jitgen show --source"):
        page(kernel())


def test_a_large_kernel_fits() -> None:
    """The largest have some 4,000 lines of PTX and 3,000 instructions; here are twice as many."""
    ptx = PTX.replace("\tret;", "\n".join(["\tfma.rn.f32 \t%r1468, %r963, %r1534, %r37;"] * 8000))
    row = "        /*{:04x}*/  @!P0 IMAD.WIDE.U32 R148, R61, 0x10, R96.reuse ;"
    sass = SASS + "\n".join(row.format(16 * n) for n in range(6000))
    listings = (code.source(SOURCE * 100), code.ptx(ptx), code.sass(sass, ptx))
    made = page(kernel(listings=listings))

    assert "<b>fma" in made, "in colours"
    assert 2 * len(made.encode()) <= document.MAX_BYTES, "so that there is room for two"


def test_the_difference_is_between_the_two() -> None:
    one = kernel(name="one")
    other = kernel(
        name="two",
        config={"tile": {"n": 192}, EVIL: EVIL},
        listings=(
            code.source(SOURCE.replace("128", "192")),
            code.sass(SASS + "        /*0030*/  FFMA R1, R1, R1, R1 ;", PTX),
        ),
    )
    found = between(one, other)

    (change,) = found.changes["config"]
    assert (change.field, change.one, change.other) == ("tile.n", "128", "192")
    assert found.operations == (("float", "FFMA", 0, 1),)
    assert [row.sign for row in found.source if row.sign in "+-"] == ["-", "+"]
    assert between(one, one).is_empty
    assert "There is none." in Page(page(one, one)).words


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_rows_of_a_difference_are_lines_of_the_two(one: list[str], other: list[str]) -> None:
    found = list(rows(one, other))

    assert all(one[row.one - 1] == row.text for row in found if row.one)
    assert all(other[row.other - 1] == row.text for row in found if row.other)
    changed = sum(row.sign in "+-" for row in found)
    assert (changed == 0) == (one == other)


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("kernel.py:962 (kernel) | ptx:63: mov.u32 %r2, %tid.x;", (962, 63)),
        ("ptx:63: mov.u32", (None, 63)),
        ("", (None, None)),
        (EVIL, (None, None)),
    ],
)
def test_places_of_findings(place: str, lines: tuple[int | None, int | None]) -> None:
    assert emulated._lines(place) == lines


def _luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(scheme: int) -> None:
    """Every colour of text has a contrast of 4.5 with what it stands on: WCAG 2, level AA."""
    blocks = re.findall(r":root \{(.*?)\}", document.asset("page.css"), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    words = ("ink", "soft", "link", "bad", "good", "word", "number", "text", "name", "note")
    pairs = [(word, under) for word in words for under in ("card", "page")]
    pairs += [(word, under) for word in ("ink", "number", "note") for under in ("hot", "never")]
    pairs += [("ink", "plus"), ("ink", "minus"), ("pin-ink", "pin")]
    found = {pair: _contrast(*(colours[name] for name in pair)) for pair in pairs}

    assert min(found.values()) >= 4.5, sorted(found.items(), key=lambda item: item[1])[:4]
    for number in range(8):  # names on regions of memory
        assert _contrast("#0c0e11", colours[f"c{number}"]) >= 4.5
