# SPDX-License-Identifier: Apache-2.0
"""Partials of templates: small, and what each provides, needs and reads stands at its top."""

from __future__ import annotations

import ast
import builtins
import re
import symtable

import jinja2.meta
import pytest

from jitgen import templates
from jitgen.codegen.render import environment
from tests.templates import TEMPLATES, places

FILES = sorted(str(path.relative_to(templates.ROOT)) for path in templates.ROOT.rglob("*.jinja"))
ENTRIES = [places(template)[template.entry] for template in TEMPLATES.values()]
PARTIALS = [name for name in FILES if name.endswith(".py.jinja") and name not in ENTRIES]
WORDS = [name for name in FILES if name.endswith(".txt.jinja")]

MAX_BRANCHES = 10
_BRANCH = re.compile(r"^\s*#%-?\s*(?:if|elif|else|for)\b", re.MULTILINE)
_STATED = re.compile(r"^## (Provides|Needs|Parameters): ((?:.*)(?:\n##     .*)*)", re.MULTILINE)
_STATED_OF_WORDS = re.compile(r"\{# Parameters: (.*?) #\}")


def _text(name: str) -> str:
    return (templates.ROOT / name).read_text(encoding="utf-8")


def _names(listed: str) -> set[str]:
    return set() if listed == "none" else set(re.split(r",\s+(?:##\s+)?", listed))


def stated(name: str) -> dict[str, set[str]]:
    """Return the three lists at the top of a partial."""
    return {what: _names(listed) for what, listed in _STATED.findall(_text(name))}


def _exported(name: str) -> set[str]:
    """Return what a partial without any Python sets for those who import it."""
    return set(re.findall(r"^#% set (\w+) =", _text(name), re.MULTILINE))


def provided_and_needed(name: str) -> tuple[set[str], set[str]]:
    """Return the global names that a partial defines, in any branch, and those it only uses."""
    text = re.sub(r"\{\{.*?\}\}", "0", _text(name))
    defined, used = set(), set()

    def visit(table: symtable.SymbolTable) -> None:
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if is_module and (symbol.is_assigned() or symbol.is_imported()):
                defined.add(symbol.get_name())
            elif symbol.is_global() or is_module:
                used.add(symbol.get_name())
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(text, name, "exec"))
    defined -= _of_comprehensions(text)
    return defined, used - defined - set(dir(builtins))


def _of_comprehensions(text: str) -> set[str]:
    """
    Return the names that a module's own comprehensions alone bind: since Python 3.12 symtable
    counts them among the module's names.
    """
    inside, others = set(), set()

    def visit(node: ast.AST, names: set[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
                continue
            is_target = isinstance(node, ast.comprehension) and child is node.target
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                (inside if is_target else names).add(child.id)
            visit(child, inside if is_target else names)

    visit(ast.parse(text), others)
    return inside - others


def parameters(name: str) -> set[str]:
    """Return the values that a file reads when it is rendered."""
    return set(
        jinja2.meta.find_undeclared_variables(environment(templates.ROOT).parse(_text(name)))
    )


@pytest.mark.parametrize("name", FILES)
def test_few_branches(name: str) -> None:
    """A partial with more branches than this is two, or its values belong into constants."""
    assert len(_BRANCH.findall(_text(name))) <= MAX_BRANCHES


@pytest.mark.parametrize("name", PARTIALS)
def test_a_partial_states_what_it_provides_needs_and_reads(name: str) -> None:
    """So that nothing is shared by accident of who includes what before."""
    provided, needed = provided_and_needed(name)

    assert stated(name) == {
        "Provides": provided or _exported(name),
        "Needs": needed,
        "Parameters": parameters(name),
    }


@pytest.mark.parametrize("name", WORDS)
def test_words_state_what_they_read(name: str) -> None:
    """Words for docstrings define nothing."""
    (listed,) = _STATED_OF_WORDS.findall(_text(name))

    assert _names(listed) == parameters(name)


@pytest.mark.parametrize("family", TEMPLATES)
def test_what_partials_need_is_provided_by_others(family: str) -> None:
    """Entries import modules and set constants; all other names come from partials that say so."""
    template = TEMPLATES[family]
    provided, needed = provided_and_needed(places(template)[template.entry])
    for name in places(template).values():
        if name in ENTRIES:  # which another entry may include
            provided |= provided_and_needed(name)[0]
        elif name in PARTIALS:
            needed |= stated(name)["Needs"]
            provided |= stated(name)["Provides"]

    assert needed <= provided


def test_every_file_belongs_to_a_template() -> None:
    """No partial is left over."""
    used = {place for template in TEMPLATES.values() for place in places(template).values()}

    assert used == set(FILES)


@pytest.mark.parametrize(
    "statement",
    [
        '#% include "sm90/" ~ layout',
        '#% include layout ~ ".py.jinja"',
        '#% include ["a.py.jinja", "b.py.jinja"]',
        '#% include "a.py.jinja" if split_k else "b.py.jinja"',
        "#% include 'sm90/math.py.jinja'",
        "#% extends base",
        '{% include "sm90/math.py.jinja" %}',
    ],
)
def test_an_include_that_cannot_be_followed_is_an_error(statement: str) -> None:
    """The digest must cover every file that may be included, so it has to know them all."""
    with pytest.raises(ValueError, match="cannot tell which files"):
        templates.referred("a.py.jinja", f"pass\n{statement}\n")


def test_an_include_by_value_refers_to_the_files_of_all_values() -> None:
    """Whatever the value will be, its file is in the digest."""
    statement = '#% include "sm90/grouped_gemm/scales_" ~ scale_granularity ~ ".py.jinja"\n'

    assert set(templates.referred("a.py.jinja", statement)) == {
        f"sm90/grouped_gemm/scales_{scales}.py.jinja" for scales in ("block128", "row", "tensor")
    }


def test_an_include_by_value_that_fits_no_file_is_an_error() -> None:
    """A misspelt prefix would leave files out of the digest."""
    with pytest.raises(ValueError, match="no file"):
        templates.referred("a.py.jinja", '#% include "shared/row_" ~ layout ~ ".py.jinja"\n')
