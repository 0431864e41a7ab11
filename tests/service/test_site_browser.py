# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.site import stage

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(find_spec("material") is None, reason="needs pip install -e '.[docs]'"),
]

CHROMIUM = Path("/usr/bin/chromium")
WIDE = "e => e.scrollWidth - e.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "docs.site", "build", "-o", str(out)]
    subprocess.run(command, cwd=stage.ROOT, check=True, capture_output=True)
    return out


@pytest.mark.parametrize("width", [390, 1400, 2560])
def test_no_page_is_wider_than_its_screen(site: Path, width: int) -> None:
    """On a phone a wide table scrolls in itself; from 1,400 pixels on, no table does."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium")
    pages = sorted(page for page in site.glob("*.html") if page.name != "404.html")  # the theme's
    wrong = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        opened = browser.new_page(viewport={"width": width, "height": 900})
        for page in pages:
            opened.goto(page.as_uri())
            if opened.locator("html").evaluate(WIDE):
                wrong.append(page.name)
            tables = opened.locator(".md-typeset__scrollwrap").evaluate_all(
                f"all => all.map({WIDE})"
            )
            if width >= 1400 and any(over > 1 for over in tables):
                wrong.append(f"{page.name}: a table")
        browser.close()

    assert len(pages) > 50
    assert wrong == []
