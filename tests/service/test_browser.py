# SPDX-License-Identifier: Apache-2.0
"""The pages in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import spec_of
from tests.service.running import Running

pytestmark = pytest.mark.service

CHROMIUM = Path("/usr/bin/chromium")
CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=16, n=64, k=128))
KEY = spec_of(CONFIG, Arch.CPU).key
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    service = Running(tmp_path / "service")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def page(running: Running) -> Iterator[Any]:
    """A page whose every complaint is an error."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        credentials = {"username": "any", "password": running.tokens["read"]}
        context = browser.new_context(http_credentials=credentials)
        opened = context.new_page()
        complaints: list[str] = []
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("dialog", lambda dialog: complaints.append(dialog.message))
        yield opened
        browser.close()
        assert not [text for text in complaints if "favicon" not in text], complaints


def test_from_the_queue_to_the_source(running: Running, page: Any) -> None:
    """A person sees a compile, follows it to its source, and finds the entry by its name."""
    assert running.compile(CONFIG).status == 200
    assert running.request("GET", "/v1/entries/" + "0" * 64).status == 404
    revoked = {"revoked": {"1" * 64: EVIL}}
    assert running.request("POST", "/v1/revocations", json=revoked).status == 200
    name = CONFIG.name(Arch.CPU)

    page.goto(f"{running.url}/ui")
    assert page.get_by_role("status").inner_text() == "Ready"
    assert name in page.locator("#recent").inner_text()
    assert "never compiled here" in page.locator("#misses").inner_text()
    # the style sheet was let through by the policy
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "flex"

    page.locator("#recent a").first.click()
    assert page.locator("h1").first.inner_text() == name
    assert "import" in page.locator("#source").inner_text()
    assert running.key.keyid[:16] in page.locator("#signatures").inner_text()

    page.get_by_role("link", name="Entries").click()
    page.get_by_label("Name or key").fill("nothing has this name")
    page.get_by_role("button", name="Search").click()
    assert page.locator("#entries").count() == 0
    page.get_by_label("Name or key").fill("t16x64")
    page.get_by_role("button", name="Search").click()
    assert page.locator("#entries a").count() == 1

    page.get_by_role("link", name="Revocations").click()
    assert EVIL in page.locator("#revocations").inner_text()
    assert page.locator("#revocations img").count() == 0


def test_every_page_fits_every_screen(running: Running, page: Any) -> None:
    """From a phone to a large screen, in both schemes; the first stop of the keyboard is a link."""
    assert running.compile(CONFIG).status == 200
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for path in ("/ui", "/ui/entries", f"/ui/entries/{KEY}", "/ui/revocations"):
            page.goto(running.url + path)
            for width in (390, 1400, 2560):
                page.set_viewport_size({"width": width, "height": 900})
                html = page.locator("html")
                assert html.evaluate("e => e.scrollWidth - e.clientWidth") == 0, (path, width)
    page.goto(f"{running.url}/ui")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    drawings = page.locator("svg[role=img]")
    assert drawings.count() >= 5
    assert all(drawings.nth(at).get_attribute("aria-label") for at in range(drawings.count()))
