# SPDX-License-Identifier: Apache-2.0
"""
Pages for everybody: axe-core finds nothing in them, at three widths, in both schemes.

axe-core comes from npm for these tests alone. Screenshots of the pages are kept in ``build/pages``,
or in the folder that PAGES names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.inspect.cache_page import cache_page
from jitgen.inspect.cache_report import report
from tests.documents import ROOT
from tests.service.running import Running
from tests.service.test_browser import CHROMIUM, CONFIG, KEY, running
from tests.service.test_inspect_browser import made
from tests.service.test_site_browser import site
from tests.unit.store_fakes import publish

__all__ = ["made", "running", "site"]

pytestmark = pytest.mark.service

VERSION = "4.14.1"
SCREENS = tuple(product((390, 1400, 2560), ("light", "dark")))
RUN = """async () => (await axe.run()).violations.map(each => each.id + ": "
    + each.nodes.slice(0, 3).map(node => node.html.slice(0, 120)).join(" | "))"""

Look = Callable[..., list[str]]


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core, as npm brings it."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    folder = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*install, "--prefix", folder, f"axe-core@{VERSION}"], check=True)
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any, axe: str) -> Look:
    """Open a page on some screens, keep a picture of each, and return what axe-core finds."""
    pictures = Path(os.environ.get("PAGES", ROOT / "build" / "pages"))
    pictures.mkdir(parents=True, exist_ok=True)

    def looked(
        name: str, url: str, screens: tuple[tuple[int, str], ...] = SCREENS, **options: Any
    ) -> list[str]:
        found = []
        for width, scheme in screens:
            context = chromium.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, **options
            )
            page = context.new_page()
            page.goto(url)
            page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png")
            page.evaluate(axe)
            found += [f"{name}, {width}, {scheme}: {each}" for each in page.evaluate(RUN)]
            context.close()
        return found

    return looked


def test_the_pages_of_a_service(running: Running, look: Look) -> None:
    assert running.compile(CONFIG).status == 200
    assert running.request("GET", "/v1/entries/" + "0" * 64).status == 404
    revoked = {"revoked": {"1" * 64: "wrong results"}}
    assert running.request("POST", "/v1/revocations", json=revoked).status == 200
    credentials = {"username": "any", "password": running.tokens["read"]}
    paths = {
        "queue": "/ui",
        "entries": "/ui/entries?name=t16x64",
        "entry": f"/ui/entries/{KEY}",
        "revocations": "/ui/revocations",
    }
    found = [
        each
        for name, path in paths.items()
        for each in look(f"service-{name}", running.url + path, http_credentials=credentials)
    ]

    assert not found, "\n".join(found)


def test_the_pages_of_kernels_and_of_a_cache(made: Path, look: Look, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", "rw")
    for number in range(3):
        publish(store, number)
    cache = tmp_path / "cache.html"
    cache.write_text(cache_page(report(store)), encoding="utf-8")

    assert look("inspect-kernels", made.as_uri()) + look("inspect-cache", cache.as_uri()) == []


@pytest.mark.parametrize("screen", SCREENS)
def test_the_site(site: Path, look: Look, screen: tuple[int, str]) -> None:
    pages = sorted(page for page in site.glob("*.html") if page.name != "404.html")  # the theme's
    found = [each for page in pages for each in look(f"site-{page.stem}", page.as_uri(), (screen,))]

    assert len(pages) > 50
    assert not found, "\n".join(found)


def test_a_page_with_a_mistake_is_found(look: Look, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text("<!doctype html><html lang=en><title>Wrong</title><main><h1>A</h1><img src=x>")
    (found,) = look("wrong", page.as_uri(), SCREENS[:1])

    assert "image-alt" in found
