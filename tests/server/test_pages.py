# SPDX-License-Identifier: Apache-2.0
"""The pages: who may see them, that nothing in them runs, that everything is escaped."""

from __future__ import annotations

import base64
import re

from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import spec_of
from jitgen.server.ui import POLICY
from tests.service.running import Running

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=16, n=64, k=128))
KEY = spec_of(CONFIG, Arch.CPU).key
EVIL = "<script>alert(1)</script>"
PAGES = ("/ui", "/ui/entries", f"/ui/entries/{KEY}", "/ui/revocations")


def test_pages_hold_what_they_promise_and_no_script(service: Running) -> None:
    """What came from outside stands there as text."""
    assert service.compile(CONFIG).status == 200
    revoked = {"revoked": {"1" * 64: EVIL}}
    assert service.request("POST", "/v1/revocations", json=revoked).status == 200
    pages = {path: service.request("GET", path) for path in PAGES}
    pages["search"] = service.request("GET", "/ui/entries?q=%22%3E" + EVIL)
    texts = {path: answer.data.decode() for path, answer in pages.items()}

    for path, answer in pages.items():
        assert answer.status == 200, path
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert not re.search(r"<script|\son\w+=|style=|javascript:|https?://", texts[path]), path
    assert CONFIG.name(Arch.CPU) in texts["/ui"]
    assert CONFIG.name(Arch.CPU) in texts["/ui/entries"]
    assert service.key.keyid[:16] in texts[f"/ui/entries/{KEY}"]
    assert "&lt;script&gt;" in texts["/ui/revocations"]
    assert "&lt;script&gt;" in texts["search"]


def test_the_overview_draws_the_last_day(service: Running) -> None:
    """In SVG with words for those who do not see it, without a script."""
    assert service.compile(CONFIG).status == 200
    assert service.request("GET", f"/v1/entries/{KEY}").status == 200
    text = service.request("GET", "/ui").data.decode()
    style = service.request("GET", "/ui/style.css").data.decode()

    assert text.count("<svg viewBox=") >= 5
    assert text.count('role="img"') == text.count("<svg ")
    assert re.search(r'aria-label="Entries asked for, by source: [\d.]+ % of \d', text)
    assert re.search(r'aria-label="Compiles: [1-9]\d* compiled', text)
    assert CONFIG.name(Arch.CPU) in text.partition("The slowest of the recent compiles")[2]
    assert 'http-equiv="refresh"' not in text, "only if a reader asks for it"
    assert 'http-equiv="refresh"' in service.request("GET", "/ui?live=1").data.decode()
    assert ".plot {" in style
    assert ".pictures {" in style


def test_a_browser_sends_the_token_as_a_password(service: Running) -> None:
    """On pages alone, where nothing can be changed."""
    words = base64.b64encode(f"any:{service.tokens['read']}".encode()).decode()
    basic = {"Authorization": f"Basic {words}"}
    refused = service.request("GET", "/ui", "")

    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"].startswith("Basic ")
    assert service.request("GET", "/ui", "", headers=basic).status == 200
    assert service.request("GET", "/v1/info", "", headers=basic).status == 401
    assert service.request("POST", "/ui", headers=basic).status == 405
