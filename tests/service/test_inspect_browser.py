# SPDX-License-Identifier: Apache-2.0
"""Pages of kernels and caches in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.cli import main
from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.inspect.cache_page import cache_page
from jitgen.inspect.cache_report import report
from jitgen.inspect.page import page as page_of
from tests import needs
from tests.inspect_pages import EVIL, kernel
from tests.unit.store_fakes import publish

pytestmark = [pytest.mark.service, needs.compiler, needs.linker]

CHROMIUM = Path("/usr/bin/chromium")
ONE, OTHER = (
    GroupedGemmConfig(layout=Layout.MASKED, tile=Tile(m=64, n=n, k=128)).name("sm_90a")
    for n in (16, 64)
)
SEEN = EVIL.replace("\u202e", r"\u202e")
Open = Callable[..., Any]


@pytest.fixture
def browse() -> Iterator[Open]:
    """Open a file in a browser without a network; whatever it complains of, or asks for, fails."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium")
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )

        def opened(path: Path, **options: Any) -> Any:
            context = browser.new_context(viewport={"width": 1500, "height": 900}, **options)
            context.set_offline(True)
            found = context.new_page()
            found.on("console", lambda message: complaints.append(message.text))
            found.on("pageerror", lambda error: complaints.append(str(error)))
            found.on("dialog", lambda dialog: complaints.append(dialog.message))
            found.on(
                "request",
                lambda request: (
                    request.url.partition("#")[0] == path.as_uri() or complaints.append(request.url)
                ),
            )
            found.goto(path.as_uri())
            return found

        opened.complaints = complaints  # type: ignore[attr-defined]
        yield opened
        browser.close()
    assert not complaints, complaints


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two kernels, made by the command."""
    root = tmp_path_factory.mktemp("pages")
    path = root / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEN_CACHE_DIR", str(root / "cache"))
        assert main.run(["inspect", ONE, "--against", OTHER, "-o", str(path)]) == 0
    return path


def lit(view: Any, kind: str = "on") -> list[int]:
    """Return how many lines of each pane are lit."""
    panes = view.locator(".code")
    return [panes.nth(at).locator(f"p.{kind}").count() for at in range(panes.count())]


def test_hovering_links_source_ptx_and_sass(browse: Open, made: Path) -> None:
    """From any of the three to the two others, and exactly the lines that belong together."""
    view = browse(made).locator("#k0 .viewer")
    lines = view.evaluate(
        "e => [...e.querySelectorAll('.code')].map(c => "
        "[...c.children].map(p => p.dataset.l).filter(l => l))"
    )
    counts = [Counter(pane) for pane in lines]
    lru = next(line for line, _ in counts[2].most_common() if counts[1][line] > 1)
    expected = [pane[lru] for pane in counts]
    for pane in range(3):
        line = view.locator(".code").nth(pane).locator(f'p[data-l="{lru}"]').first
        line.scroll_into_view_if_needed()
        line.hover(position={"x": 80, "y": 5})
        assert lit(view) == expected
        words = f"line {lru}: {expected[1]} PTX, {expected[2]} SASS"
        assert view.locator("output").inner_text() == words
    matrix = view.locator(".code.sass b", has_text="QGMMA").first
    matrix.scroll_into_view_if_needed()
    matrix.hover()
    assert "cute.gemm" in view.locator(".code.python p.on").inner_text()
    ptx = view.locator(".code.ptx p.on").all_inner_texts()
    assert any("wgmma.mma_async" in line for line in ptx)


def test_lines_wrap_so_that_every_width_shows_them_whole(browse: Open, made: Path) -> None:
    """Neither the page nor a pane scrolls sideways; the source has most of the room."""
    opened = browse(made)
    for width in (390, 1400, 2560):
        opened.set_viewport_size({"width": width, "height": 900})
        wide = "e => e.scrollWidth - e.clientWidth"
        assert opened.locator("html").evaluate(wide) == 0, width
        panes = opened.locator("#k0 .code")
        assert [panes.nth(at).evaluate(wide) for at in range(3)] == [0, 0, 0]
    first, second = (panes.nth(at).bounding_box()["width"] for at in (0, 1))
    assert first > 1.5 * second


def test_a_line_without_instructions_says_so(browse: Open, made: Path) -> None:
    view = browse(made).locator("#k0 .viewer")
    view.locator(".code.python p").nth(2).hover(position={"x": 80, "y": 5})

    assert view.locator("output").inner_text() == "line 3: no instructions"


def test_pinning_holds_still_and_shows_the_others(browse: Open, made: Path) -> None:
    view = browse(made).locator("#k0 .viewer")
    matrix = view.locator(".code.sass b", has_text="QGMMA").first
    matrix.scroll_into_view_if_needed()
    matrix.click()
    pinned = lit(view, "pin")

    assert min(pinned) > 0
    for language in ("python", "ptx"):  # scrolled to where it is
        box = view.locator(f".code.{language} p.pin").first.bounding_box()
        pane = view.locator(f".code.{language}").bounding_box()
        assert pane["y"] <= box["y"] <= pane["y"] + pane["height"]
    view.locator(".code.python p").nth(3).hover()
    assert lit(view, "pin") == pinned
    view.locator(".unpin").click()
    assert lit(view, "pin") == [0, 0, 0]


def test_searching_and_the_keyboard(browse: Open, made: Path) -> None:
    """Everything works without a mouse."""
    opened = browse(made)
    view = opened.locator("#k0 .viewer")
    source = view.locator(".code.python")
    source.focus()
    opened.keyboard.press("/")
    opened.keyboard.type("qgmma")
    count = view.locator("p.match").count()
    assert view.locator("output").inner_text() == f"{count} lines with it"
    assert count >= 4
    opened.keyboard.press("Enter")
    assert view.locator("output").inner_text() == f"1 of {count}"
    opened.keyboard.press("Shift+Enter")
    assert view.locator("output").inner_text() == f"{count} of {count}"
    opened.keyboard.press("Escape")
    assert view.locator("p.match").count() == 0

    source.focus()
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("PageDown")
    assert view.locator(".code.python p.at").get_attribute("data-n") == "21"
    opened.keyboard.press("Enter")
    assert lit(view, "pin")[0] == 1
    opened.keyboard.press("Escape")
    assert lit(view, "pin")[0] == 0


def test_two_kernels_take_turns(browse: Open, made: Path) -> None:
    opened = browse(made)
    first, second = opened.locator("#k0"), opened.locator("#k1")
    assert (first.is_visible(), second.is_visible()) == (True, False)
    opened.get_by_role("button", name=OTHER).click()
    assert (first.is_visible(), second.is_visible()) == (False, True)
    opened.get_by_role("link", name="Memory").click()
    assert 0 <= opened.locator("#memory-1").bounding_box()["y"] < 200
    assert "tile.n" in opened.locator("#difference").inner_text()
    assert "FFMA" in opened.locator("#difference").inner_text()

    opened.evaluate("location.hash = '#k0-20'")
    opened.wait_for_function("!document.getElementById('k0').hidden")
    assert opened.locator("#k0-20").get_attribute("class") == "pin"


def test_hostile_kernels_do_nothing(browse: Open, tmp_path: Path) -> None:
    """No script of theirs runs, none of their elements is one, and no request is sent."""
    path = tmp_path / "page.html"
    path.write_text(page_of(kernel(), kernel(name=f"{EVIL} 2")), encoding="utf-8")
    opened = browse(path)

    assert opened.locator("img").count() == 0
    assert opened.locator("h1").first.inner_text() == SEEN
    opened.locator("#emulator a").first.click()
    assert opened.locator("#k0-9").get_attribute("class").split() == ["never", "wrong", "pin"]


def test_the_policy_stops_what_would_get_in(browse: Open, tmp_path: Path) -> None:
    """Should markup ever be escaped wrongly: no script, style, image or connection of its own."""
    path = tmp_path / "page.html"
    text = page_of(kernel())
    bad = "<script>document.title='taken'</script><img src='file:///etc/hostname'>"
    path.write_text(text.replace("<main>", f"<main>{bad}<p id=new style='color:red'>x</p>"))
    opened = browse(path)
    colour = "getComputedStyle(document.getElementById('new')).color"

    assert opened.title() != "taken"
    assert opened.evaluate(colour) != "rgb(255, 0, 0)"
    assert opened.evaluate("fetch('https://example.com').then(() => 'out', () => 'in')") == "in"
    assert len([text for text in browse.complaints if "Content Security Policy" in text]) >= 4  # type: ignore[attr-defined]
    browse.complaints.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes(browse: Open, made: Path, scheme: str) -> None:
    opened = browse(made, color_scheme=scheme)
    page = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(page.removeprefix("rgb(").partition(",")[0])

    assert (red > 200) is (scheme == "light")


def test_the_entries_of_a_cache_can_be_filtered(
    browse: Open, tmp_path: Path, cache_root: Path
) -> None:
    store = Store.open(cache_root)
    for number in range(5):
        publish(store, number, name=f"{EVIL} kernel {number}")
    path = tmp_path / "cache.html"
    path.write_text(cache_page(report(store)), encoding="utf-8")
    opened = browse(path)
    opened.get_by_label("Filter").fill("KERNEL 3")

    assert opened.locator("#entries output").inner_text() == "1 of 5"
    assert opened.locator("#rows tbody tr:visible").count() == 1
