# SPDX-License-Identifier: Apache-2.0
"""
The frame of a page: one self-contained file, whose policy allows it to load no other file.

Only the page's style and script are allowed, by their digests, so injected markup could neither run
a script nor fetch or send data.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jitgen._version import __version__
from jitgen.inspect.markup import Markup, escaped, tag

MAX_BYTES = 3 * 2**20
"""Limit in bytes for a page; a browser opens it at once."""


def document(title: str, *body: object) -> str:
    """Return a page with a title and `body`, which may be markup."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{escaped(policy)}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"jitgen {__version__}"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    page = tag("body", *body, Markup(f"<script>{script}</script>"))
    return f'<!doctype html>\n<html lang="en">{head}{page}</html>\n'


@cache
def asset(name: str) -> str:
    """Return the text of file `name` of ``assets/``."""
    folder = resources.files("jitgen.inspect") / "assets"
    return (folder / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
