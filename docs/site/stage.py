# SPDX-License-Identifier: Apache-2.0
"""
A folder that mkdocs makes a site of: pages, reference, and the files that pages link to.

Pages are written to be read in the repository. On the site they lie side by side, and what is no
page is copied to ``files/``; so every relative link is rewritten here, and a link that leads
nowhere is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from docs.site import api, commands, navigation

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, ASSETS = "examples.md", ("site.css", "site.js")
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
"""A link to something that is no URL, in four parts; target and anchor are the middle ones."""

_ALONE = "---\nhide: [navigation, toc]\n---\n"
"""What mkdocs reads at the head of the first page: no menus beside it."""

_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"(?<!\[)`(jitgen(?:\.\w+)+)(?:\([^`\n]*\))?`")
_PAGE = re.compile(r"(?<![\w/`\[(.])docs/([\w-]+\.md)(?![\w/`#])")


class BrokenLink(Exception):
    """A page links to something that is not there."""


def place(path: str) -> str:
    """Return where a page of the repository lies on the site."""
    return {"docs/index.md": navigation.HOME, "README.md": "readme.md"}.get(
        path, PurePosixPath(path).name
    )


def generated() -> dict[str, str]:
    """Return every page that is written by no person, by its place on the site."""
    made = {EXAMPLES: _examples()}
    return made | api.pages() | commands.pages()


def menu() -> list[dict[str, object]]:
    """Return the site's menu as mkdocs takes it."""
    entries: list[dict[str, object]] = [{"Home": navigation.HOME}]
    for title, pages in navigation.PAGES:
        entries.append({title: [place(page) for page in pages]})
    reference = [
        {"Command line": commands.menu()},
        {"Python": api.menu()},
        {"Examples": EXAMPLES},
    ]
    return [*entries, {"Reference": reference}]


def written(folder: Path) -> Path:
    """Fill `folder`, and return the settings for mkdocs in it."""
    pages = folder / "pages"
    for path in ("docs/index.md", *navigation.documents()):
        text = (ROOT / path).read_text(encoding="utf-8")
        text = relinked(text, path, _to_site(path, pages))
        if path == "docs/index.md":
            text = _ALONE + text
        _write(pages / place(path), crossed(text, place(path)))
    for where, text in generated().items():
        _write(pages / where, crossed(text, where))
    for asset in ASSETS:
        shutil.copyfile(Path(__file__).with_name(asset), pages / asset)
    settings = {
        "INHERIT": str(Path(__file__).with_name("mkdocs.yml")),
        "docs_dir": str(pages),
        "nav": menu(),
    }
    made = folder / "mkdocs.yml"
    made.write_text(json.dumps(settings, indent=2), encoding="utf-8")  # JSON is YAML
    return made


def relinked(text: str, path: str, to: Callable[[str], str]) -> str:
    """
    Return a page with other link targets; code stays as it is.

    Args:
        text: The page.
        path: Where it is in the repository.
        to: Gives the new target for what a link names, a path from the root.

    Raises:
        BrokenLink: A link names what is not in the repository.
    """

    def target(found: re.Match[str]) -> str:
        named = os.path.normpath(PurePosixPath(path).parent / found[2])
        if not (ROOT / named).exists() or named.startswith(".."):
            raise BrokenLink(f"{path} links to {found[2]}, which is not there")
        return f"{found[1]}{to(named)}{found[3] or ''}{found[4]}"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(target, part) for part in parts)


def crossed(text: str, where: str) -> str:
    """
    Return a page of the site with links where it names something: a public name between
    backticks its place in the reference, ``docs/NAME.md`` in a sentence that page.
    """
    up = "../" * where.count("/")

    def name(found: re.Match[str]) -> str:
        described = _places().get(found[1], where)
        is_elsewhere = described.partition("#")[0] != where
        return f"[{found[0]}]({up}{described})" if is_elsewhere else found[0]

    def page(found: re.Match[str]) -> str:
        return f"[{found[1]}]({up}{found[1]})" if found[0] in _documents() else found[0]

    parts = _FENCE.split(text)
    return "".join(
        part if part.startswith("```") else _PAGE.sub(page, _NAME.sub(name, part)) for part in parts
    )


@cache
def _places() -> dict[str, str]:
    return api.places()


@cache
def _documents() -> frozenset[str]:
    return frozenset(navigation.documents())


def broken(pages: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a finished folder, without mkdocs."""
    for page in sorted(pages.rglob("*.md")):
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for found in LINK.finditer(text):
            target = (page.parent / found[2]).resolve()
            if not target.is_file():
                yield f"{page.relative_to(pages)}: {found[2]}"
            elif found[3] and found[3][1:] not in _anchors(target):
                yield f"{page.relative_to(pages)}: {found[2]}{found[3]}"


def _anchors(page: Path) -> set[str]:
    """Return the anchors that mkdocs gives to the headings of a page."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def _to_site(path: str, pages: Path) -> Callable[[str], str]:
    known = {each: place(each) for each in ("docs/index.md", *navigation.documents())}
    known["examples"] = EXAMPLES

    def to(named: str) -> str:
        if named in known:
            return known[named]
        source = ROOT / named
        if source.is_dir():
            raise BrokenLink(f"{path} links to the folder {named}, which no page shows")
        copy = pages / "files" / named
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        return f"files/{named}"

    return to


def _examples() -> str:
    lines = ["# Examples", "", "Each runs as a script, on a CPU too, and is run by a test.", ""]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines += [f"## {path.name}", "", "```python", source.rstrip(), "```", ""]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
