# SPDX-License-Identifier: Apache-2.0
"""
The public surface, one fact a line: what docs/compatibility.md promises to keep.

    python -m tests.surface show      the surface as it is now
    python -m tests.surface diff      what is not as it was accepted
    python -m tests.surface accept    accept it, if CHANGELOG.md tells of every change

`tests/surface.txt` is the accepted surface. `accept` compares it with that of the last commit that
accepted one: each line that came, went or changed must be named by a line of CHANGELOG.md that is
newer than that commit. These lines of CHANGELOG.md stand at the head of the file, above the digest
of the surface, so that an edit by hand is found as well.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import hashlib
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import click

import jitgen

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("surface.txt")
TORCH = Path(__file__).with_name("torch_schemas.txt")
CHANGELOG = "CHANGELOG.md"

_DIGEST, _TOLD = "# digest: ", "# told by: "
_HEAD = """\
# The public surface of jitgen as it was accepted. After a change: a line in CHANGELOG.md, then
# python -m tests.surface accept
"""
_WORD = re.compile(r"[\w-]+")


class Accepted(NamedTuple):
    """
    What the file says.

    Attributes:
        lines: The surface.
        digest: Digest of the surface that was accepted.
        told: Lines of CHANGELOG.md that tell of its last change.
    """

    lines: list[str]
    digest: str
    told: list[str]


def surface() -> list[str]:
    """Return the surface as it is now."""
    return sorted(
        {*_python(), *_settings(), *_commands(), *_json(), *_service(), *_formats(), *_torch()}
    )


def digest(lines: Iterable[str]) -> str:
    """Return the digest of a surface."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def parsed(text: str) -> Accepted:
    """Return what the text of the file says."""
    lines = text.splitlines()
    return Accepted(
        [line for line in lines if line and not line.startswith("#")],
        "".join(line.removeprefix(_DIGEST) for line in lines if line.startswith(_DIGEST)),
        [line.removeprefix(_TOLD) for line in lines if line.startswith(_TOLD)],
    )


def written(lines: list[str], told: Iterable[str]) -> str:
    """Return the text of the file."""
    head = [*(f"{_TOLD}{line}" for line in told), f"{_DIGEST}{digest(lines)}"]
    return "\n".join([_HEAD.rstrip("\n"), *head, *lines]) + "\n"


def entries(changelog: str) -> list[str]:
    """Return the entries of CHANGELOG.md, each in one line."""
    return [" ".join(each.split()) for each in re.split(r"^- ", changelog, flags=re.MULTILINE)[1:]]


def changed(was: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return the lines that only one of two surfaces has."""
    return sorted(set(was) ^ set(now))


def telling(line: str, told: Iterable[str]) -> str | None:
    """
    Return the first entry that names what a line of the surface is about, None if none does.

    A name counts with or without what it belongs to: ``--jobs`` or ``jitgen prewarm``, ``MoELayer``
    or ``from_config``, a field of JSON or its command.
    """
    kind, _, rest = line.partition(" ")
    subject = rest.partition(": ")[0].partition("(")[0] if kind != "format" else rest
    words = {word.strip("-") for word in _WORD.findall(subject)}
    words -= {"jitgen", "json", "v1", ""}
    for entry in told:
        if words & {word.strip("-") for word in _WORD.findall(entry)}:
            return entry
    return None


def _python() -> Iterator[str]:
    from docs.site import api

    seen: dict[int, str] = {}
    modules = {"jitgen": {name: getattr(jitgen, name) for name in api.names()}}
    modules |= {name: api.members(importlib.import_module(name)) for name in api.MODULES}
    for module, members in modules.items():
        for name, thing in members.items():
            full = f"{module}.{name}"
            if id(thing) in seen:
                yield f"python {full}: is {seen[id(thing)]}"
                continue
            seen[id(thing)] = full
            yield from _thing(full, thing)


def _thing(full: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        is_function = inspect.isroutine(thing)
        yield f"python {_signature(full, thing) if is_function else f'{full}: an object'}"
        yield from () if is_function else _members(full, type(thing))
    elif issubclass(thing, enum.Enum):
        yield f"python {full}: an enumeration"
        yield from (f"python {full}.{each.name}: {each.value!r}" for each in thing)
        yield from _members(full, thing)
    elif issubclass(thing, BaseException):
        bases = ", ".join(base.__name__ for base in thing.__bases__)
        yield f"python {full}: raised; is {bases}"
    else:
        yield f"python {_signature(full, thing)}"
        yield from _members(full, thing)


def _members(full: str, kind: type) -> Iterator[str]:
    """Yield what jitgen's own classes among a class and its bases define for callers."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("jitgen"):
            continue
        for name, raw in vars(base).items():
            thing = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
            if name.startswith("_") or name in seen or inspect.isclass(thing):
                continue
            if isinstance(thing, property):
                yield f"python {full}.{name}: a property"
            elif inspect.isroutine(thing):
                yield f"python {_signature(f'{full}.{name}', getattr(kind, name), method=True)}"
            else:
                continue
            seen.add(name)


def _signature(name: str, thing: Any, *, method: bool = False) -> str:
    from docs.site.docstrings import signature

    line = " ".join(signature(name, thing, is_method=method).split())
    return line.replace("( ", "(").replace(", )", ")")


def _settings() -> Iterator[str]:
    from jitgen.support.variables import TABLE

    for each in TABLE:
        yield f"setting {each.variable}: {each.name}, {each.kind}, {each.shown_default}"


def _commands() -> Iterator[str]:
    from docs.site.commands import commands

    for path, command in commands():
        name = " ".join(("jitgen", *path))
        yield f"command {name}"
        for each in command.params:
            if isinstance(each, click.Option) and each.hidden:
                continue
            yield f"command {name} {_parameter(each)}"


def _parameter(each: click.Parameter) -> str:
    names = "/".join([*each.opts, *each.secondary_opts])
    if isinstance(each, click.Argument):
        return f"{each.human_readable_name}: argument" + (", many" if each.nargs == -1 else "")
    assert isinstance(each, click.Option)
    kind = "flag" if each.is_flag else getattr(each.type, "name", "text")
    if isinstance(each.type, click.Choice):
        kind = "|".join(map(str, each.type.choices))
    traits = {"many": each.multiple, "required": each.required}
    return ", ".join([f"{names}: {kind}", *(trait for trait, holds in traits.items() if holds)])


def _json() -> Iterator[str]:
    from jitgen.cli.schemas import DOCUMENTS, schema_of

    seen: dict[tuple[str, ...], str] = {}
    for command in DOCUMENTS:
        documents = schema_of([command])["anyOf"][:-1]  # the last is that of errors
        lines = tuple(sorted({line for each in documents for line in _properties(each, "")}))
        if lines in seen:
            yield f"json {command}: as {seen[lines]}"
            continue
        seen[lines] = command
        yield from (f"json {command} {line}" for line in lines)


def _properties(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield a line for each field of a schema, and of what is in it."""
    for name, inner in schema.get("properties", {}).items():
        if not path and name in ("schema", "command"):
            continue
        place = f"{path}.{name}" if path else name
        sure = "" if name in schema.get("required", ()) else "?"
        yield f"{place}{sure}: {_type(inner)}"
        yield from _properties(inner, place)
    if isinstance(items := schema.get("items"), dict):
        yield from _properties(items, f"{path}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from _properties(values, f"{path}.*")
    for variant in schema.get("anyOf", ()):
        yield from _properties(variant, path)


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"array of {_type(items)}" if isinstance(items, dict) else "array"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _service() -> Iterator[str]:
    from jitgen.server.openapi import document
    from jitgen.server.settings import SECTIONS, Toolchain

    for path, methods in document()["paths"].items():  # type: ignore[attr-defined]
        for method, operation in methods.items():
            answers = " ".join(operation["responses"])
            scope = operation.get("x-scope", "no scope")
            yield f"service {method.upper()} {path}: {scope}; {answers}"
    for section, kind in {**SECTIONS, "toolchains": Toolchain}.items():
        yield from (f"service-setting {section}.{each.name}" for each in fields(kind))


def _formats() -> Iterator[str]:
    from jitgen.cache import root
    from jitgen.cli import output
    from jitgen.events import EventKind
    from jitgen.plans import recording
    from jitgen.runtime import coverage, spec
    from jitgen.selection import record
    from jitgen.signing import statement, trust

    yield f"format key document: {spec.SCHEMA}"
    yield f"format store: {root.VERSION}"
    yield f"format JSON of commands: {output.SCHEMA}"
    yield f"format recording: {recording.SCHEMA}"
    yield f"format coverage record: {coverage.SCHEMA}"
    yield f"format measured choice: {record.SCHEMA}"
    yield f"format signed statement: {statement.PAYLOAD_TYPE}"
    yield f"format trust document: {trust.PAYLOAD_TYPE}"
    yield from (f"event {kind.value}" for kind in EventKind)


def _torch() -> Iterator[str]:
    """Yield the schemas of operations, which `tests/unit/test_calls.py` holds against torch."""
    for line in TORCH.read_text(encoding="utf-8").splitlines():
        yield f"torch {line}"


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _before() -> tuple[list[str], set[str]]:
    """
    Return the surface that was accepted last, and the entries that CHANGELOG.md had then; both are
    empty before the first.
    """
    place = FILE.relative_to(ROOT).as_posix()
    commit = (_git("log", "-1", "--format=%H", "--", place) or "").strip()
    if not commit:
        return [], set()
    texts = [_git("show", f"{commit}:{name}") or "" for name in (place, CHANGELOG)]
    return parsed(texts[0]).lines, set(entries(texts[1]))


def accept() -> list[str]:
    """Write the surface as it is now; return the changes that no new entry names, if any are."""
    now = surface()
    was, old = _before()
    news = [each for each in entries((ROOT / CHANGELOG).read_text("utf-8")) if each not in old]
    changes = changed(was, now) if was else []
    told = {line: telling(line, news) for line in changes}
    missing = [line for line, entry in told.items() if entry is None]
    if not missing:
        found = dict.fromkeys(entry for entry in told.values() if entry is not None)
        kept = found if changes else parsed(FILE.read_text("utf-8")).told if FILE.exists() else []
        FILE.write_text(written(now, kept), encoding="utf-8")
    return missing


def main() -> int:
    """Return 1 where a change is not accepted."""
    parser = argparse.ArgumentParser(prog="python -m tests.surface", description=__doc__)
    parser.add_argument("what", choices=["show", "diff", "accept"])
    what = parser.parse_args().what
    if what == "show":
        print(*surface(), sep="\n")
        return 0
    if what == "diff":
        lines = parsed(FILE.read_text(encoding="utf-8")).lines
        difference = list(difflib.unified_diff(lines, surface(), "accepted", "now", "", "", 0, ""))
        for line in difference:
            print(line)
        return int(bool(difference))
    missing = accept()
    if missing:
        print("no new line of CHANGELOG.md names these changes; write one, then accept again:")
        print(*missing, sep="\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
