# SPDX-License-Identifier: Apache-2.0
"""
The reference of public names: a page for each name of `jitgen`, and one for each public module.

Which names are public the modules' own ``__all__`` says; where a module has none, it is what it
defines itself and does not begin with an underscore.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

import jitgen
from docs.site.docstrings import markdown, signature

MODULES = (
    "jitgen.quantize",
    "jitgen.torch",
    "jitgen.parallel",
    "jitgen.reference",
    "jitgen.verify",
    "jitgen.plans",
    "jitgen.metrics",
    "jitgen.events",
    "jitgen.errors",
    "jitgen.integrations.transformers",
    "jitgen.integrations.vllm",
    "jitgen.integrations.sglang",
)
"""Those with a page of their own."""

_PLAIN = (str, int, float, tuple, bool)


def pages() -> dict[str, str]:
    """Return the text of every page, by its place on the site."""
    made = {page_of(name): _name_page(name) for name in names()}
    return made | {module_page(name): _module_page(name) for name in MODULES}


def names() -> list[str]:
    """Return the public names of jitgen that are no modules and no constants."""
    return [name for name in jitgen.__all__ if not isinstance(_of(name), (ModuleType, *_PLAIN))]


def page_of(name: str) -> str:
    """Return where a name of jitgen is described; two may differ in their case alone."""
    kind = "class-" if inspect.isclass(_of(name)) else ""
    return f"api/{kind}{name}.md"


def module_page(name: str) -> str:
    """Return where a public module is described."""
    return f"api/{name}.md"


def menu() -> list[dict[str, object]]:
    """Return the part of the site's menu that holds the reference."""
    sections: dict[str, list[dict[str, str]]] = {}
    for name in names():
        sections.setdefault(_section(name), []).append({name: page_of(name)})
    sections["Modules"] = [{name: module_page(name)} for name in MODULES]
    return [{title: pages} for title, pages in sorted(sections.items())]


def members(module: ModuleType) -> dict[str, object]:
    """Return what a module offers, by name."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_")
            and (inspect.isclass(thing) or inspect.isfunction(thing))
            and thing.__module__ == module.__name__
        ]
    return {name: getattr(module, name) for name in listed}


def places() -> dict[str, str]:
    """Return where each public name is described, by its full name: a page, perhaps an anchor."""
    found = {f"jitgen.{name}": page_of(name) for name in names()}
    for module in MODULES:
        found[module] = module_page(module)
        for member in members(importlib.import_module(module)):
            found[f"{module}.{member}"] = f"{module_page(module)}#{member.lower()}"
    return found


def _of(name: str) -> object:
    return getattr(jitgen, name)


def _section(name: str) -> str:
    thing = _of(name)
    if inspect.isfunction(thing):
        return "Functions"
    if name.endswith(("Config", "Problem")) or thing.__module__.endswith(".config"):
        return "Configs and problems"
    return "Objects"


def _name_page(name: str) -> str:
    return "\n".join([f"# jitgen.{name}", "", *_described(name, _of(name), "jitgen")])


def _module_page(name: str) -> str:
    module = importlib.import_module(name)
    lines = [f"# {name}", "", markdown(module.__doc__)]
    for member, thing in members(module).items():
        lines += [f"## {member}", "", *_described(member, thing, name)]
    return "\n".join(lines)


def _described(name: str, thing: object, module: str) -> Iterator[str]:
    if not inspect.isclass(thing) and not callable(thing):  # an object, such as the settings
        yield from ["```python", f"{module}.{name}", "```", "", markdown(type(thing).__doc__)]
        yield from _methods(type(thing), "##" if module == "jitgen" else "###")
        return
    yield from ["```python", signature(f"{module}.{name}", thing), "```", ""]
    yield markdown(thing.__doc__)
    if inspect.isclass(thing):
        if issubclass(thing, enum.Enum):
            yield "Values: " + ", ".join(f"`{each.value!r}`" for each in thing) + "\n"
        yield from _methods(thing, "##" if module == "jitgen" else "###")


def _methods(kind: type, heading: str) -> Iterator[str]:
    """Yield what jitgen's own classes among a class and its bases define and describe."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("jitgen"):
            continue
        for name, raw in vars(base).items():
            thing = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
            is_property = isinstance(thing, property)
            if name.startswith("_") or name in seen or not (is_property or callable(thing)):
                continue
            seen.add(name)
            text = inspect.getdoc(getattr(kind, name))
            if inspect.isclass(thing) or not text:
                continue
            shown = name if is_property else signature(name, getattr(kind, name), is_method=True)
            yield from [f"{heading} {name}", "", "```python", shown, "```", "", markdown(text)]
