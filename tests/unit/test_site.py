# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation: complete, linked, and built strictly where mkdocs is installed."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jitgen
from docs.site import api, commands, docstrings, navigation, peers, stage, variables
from jitgen import errors
from jitgen.settings import TABLE
from tests import documents


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mkdocs would be given."""
    folder = tmp_path_factory.mktemp("site")
    stage.written(folder)
    return folder


def _menu(entry: Any) -> list[str]:
    """Return the pages of a menu, as mkdocs reads it."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for each in inner for page in _menu(each)]


def test_every_page_is_in_the_menu_once(staged: Path) -> None:
    shown = _menu(json.loads((staged / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    there = [path.relative_to(staged / "pages").as_posix() for path in staged.glob("pages/**/*.md")]

    assert sorted(shown) == sorted(there)
    assert set(documents.pages()) <= {"docs/index.md", *navigation.documents()}


def test_every_link_leads_somewhere(staged: Path) -> None:
    assert list(stage.broken(staged / "pages")) == []
    assert (staged / "pages/files/tests/pins/engines.txt").is_file()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a](other.md)", "other.md"),
        ("[a](page.md#none)", "page.md#none"),
        ("# A\n[a](page.md#a)", ""),
    ],
)
def test_broken_links_are_seen(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text, encoding="utf-8")

    assert [line.partition(": ")[2] for line in stage.broken(tmp_path)] == [says] * bool(says)


def test_a_page_that_links_to_nothing_is_refused() -> None:
    with pytest.raises(stage.BrokenLink, match=r"docs/plans\.md links to nowhere\.md"):
        stage.relinked("[a](nowhere.md)", "docs/plans.md", str)


def test_names_and_pages_become_links() -> None:
    made = stage.crossed(
        "See docs/plans.md, `docs/plans.md`, `jitgen.moe(...)`, [`jitgen.moe`](a) and\n"
        "`jitgen.quantize.nvfp4`, not `jitgen.none`.\n```\n`jitgen.moe`\n```\n",
        "api/route.md",
    )

    assert made == (
        "See [plans.md](../plans.md), `docs/plans.md`, [`jitgen.moe(...)`](../api/moe.md), "
        "[`jitgen.moe`](a) and\n"
        "[`jitgen.quantize.nvfp4`](../api/jitgen.quantize.md#nvfp4), not `jitgen.none`.\n"
        "```\n`jitgen.moe`\n```\n"
    )


def test_every_public_name_has_a_page(staged: Path) -> None:
    for name in jitgen.__all__:
        thing = getattr(jitgen, name)
        if isinstance(thing, ModuleType):
            page = api.module_page(thing.__name__)
        elif name == "__version__":
            continue  # a string
        else:
            page = api.page_of(name)
        text = (staged / "pages" / page).read_text(encoding="utf-8")

        assert text.startswith(f"# jitgen.{name}\n"), name
        assert len(text.splitlines()) > 5, f"{name} is not described"


def test_help_of_a_public_name_has_no_address() -> None:
    """`help(jitgen.route)` had ``logits = <object object at 0x7f...>``."""
    functions = {name: getattr(jitgen, name) for name in jitgen.__all__}
    found = {
        name: str(inspect.signature(f)) for name, f in functions.items() if inspect.isroutine(f)
    }

    assert {"moe_fc2_dense", "route"} < found.keys()
    assert [name for name, text in found.items() if " at 0x" in text] == []


@pytest.mark.parametrize("module", api.MODULES)
def test_every_name_of_a_public_module_is_described(module: str, staged: Path) -> None:
    text = (staged / "pages" / api.module_page(module)).read_text(encoding="utf-8")
    members = api.members(importlib.import_module(module))
    assert members
    for name, thing in members.items():
        _, _, part = text.partition(f"\n## {name}\n")
        first = (inspect.getdoc(thing) or "").splitlines()

        assert first, f"{module}.{name} has no docstring"
        said = stage.crossed(docstrings.markdown(first[0]), api.module_page(module)).strip()
        assert said in part, f"{module}.{name}"


def test_every_command_and_option_is_described(staged: Path) -> None:
    for path, command in commands.commands():
        text = (staged / "pages" / commands.page_of(path[0])).read_text(encoding="utf-8")
        _, _, part = text.partition(f"# jitgen {' '.join(path)}\n")
        options = [name for each in command.params for name in each.opts if name.startswith("--")]

        assert part, path
        assert [name for name in options if f"{name}" not in part] == []


def test_every_setting_is_described(staged: Path) -> None:
    text = (staged / "pages" / "settings.md").read_text(encoding="utf-8")

    assert [each.name for each in TABLE if f"| `{each.variable}` |" not in text] == []


def test_what_is_read_besides_is_described() -> None:
    """Every variable of the environment that a source names, and none that no source reads."""
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in Path(jitgen.__file__).parent.rglob("*.py")
        if "emulator" not in path.parts or path.name == "native.py"
    )
    read = set(re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"', sources))
    read |= set(re.findall(r'_number\("([A-Z_]+)"', sources))
    described = {name for names in variables.ELSEWHERE for name in names.split(", ")}

    assert read - described == set()
    assert [name for name in described if name not in sources] == []


def test_docstrings_become_markdown() -> None:
    """Sections become lists, literal blocks and tables of another language blocks of code."""
    made = docstrings.markdown(
        """Do it::

            x = 1

        Args:
            a: What
                it is.
            *b: More, by the table:

                ===  ===
                one  two
                ===  ===
                 1    2
                ===  ===

        Raises:
            ValueError: Never.
        """
    )

    assert made.startswith("Do it:\n\n    x = 1\n")
    assert "- `a`: What\n    it is.\n- `*b`: More" in made
    assert "    ```text\n    ===  ===\n    one  two\n" in made
    assert "**Raises**\n\n- `ValueError`: Never.\n" in made


class TestTroubleshooting:
    """docs/troubleshooting.md knows what there is, and nothing else."""

    TEXT = documents.text("docs/troubleshooting.md")

    def test_every_error(self) -> None:
        own = {name for name, thing in vars(errors).items() if inspect.isclass(thing)}
        named = {row.split("`")[1] for row in self.TEXT.splitlines() if row.startswith("| `")}

        assert own - {"JitgenError", "Any"} == {name for name in named if not name.startswith("E_")}

    def test_every_code_of_a_rule(self) -> None:
        sources = (Path(jitgen.__file__).parent / "targets").rglob("*.py")
        raised = {
            code
            for path in sources
            for code in re.findall(r'"(E_[A-Z_0-9]+)"', path.read_text(encoding="utf-8"))
        }
        table = self.TEXT.partition("## Codes of rules")[2]

        assert set(re.findall(r"`(E_[A-Z_0-9]+)`", table)) - {"E_EXCLUDED", "E_NUMERICS"} == raised

    def test_every_warning_is_one_that_is_told(self) -> None:
        """Each quoted piece stands in the sources, whose texts may be split over lines."""
        joined = re.compile(r'"\s*f?"')
        home = Path(jitgen.__file__).parent
        sources = "\n".join(
            joined.sub("", path.read_text(encoding="utf-8"))
            for path in [*home.rglob("*.py"), *(home / "cache").glob("*.py")]  # which is a link
        )
        table = self.TEXT.partition("## Warnings")[2].partition("## Codes")[0]
        quoted = [text for row in table.splitlines() for text in re.findall(r'"([^"]+)"', row)]
        pieces = [piece.strip() for text in quoted for piece in text.split("...") if piece.strip()]

        assert len(pieces) > 15
        assert [piece for piece in pieces if piece not in sources] == []


@pytest.mark.skipif(find_spec("material") is None, reason="needs pip install -e '.[docs]'")
def test_mkdocs_builds_it_strictly(tmp_path: Path) -> None:
    out = tmp_path / "site"
    command = [sys.executable, "-m", "docs.site", "build", "-o", str(out)]
    done = subprocess.run(command, cwd=stage.ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    page = (out / "api" / "grouped_gemm.html").read_text(encoding="utf-8")
    assert "expected_m" in page
    assert "fonts.googleapis.com" not in page, "it is read without a network"


def test_the_plot_shows_the_table_of_the_readme() -> None:
    """If not: python -m docs.site plot."""
    names, rows = peers.table()
    plot = documents.text("docs/plots/peers.svg")

    assert plot == peers.svg()
    assert names == ["DeepGEMM", "cuBLASLt", "torch", "Triton"]
    assert rows[-1] == ("geometric mean of 41", [1.114, 1.99, 1.40, 1.64])
    assert len(rows) == 6


def test_the_first_page_links_to_every_other() -> None:
    text = (stage.ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.removeprefix("docs/") for path in navigation.documents()}
    linked = {path.removeprefix("../") for path in re.findall(r"\]\(([^)#]+)\)", text)}

    assert pages <= linked
