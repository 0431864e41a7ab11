# SPDX-License-Identifier: Apache-2.0
"""Renders the source of a config, with Jinja."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from jitgen.codegen import parameters as given
from jitgen.codegen.parameters import parameters, template_of
from jitgen.codegen.specialise import specialised
from jitgen.config import Arch, Config
from jitgen.errors import RenderError, ToolchainError
from jitgen.events import Event, EventKind, events
from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Template
from jitgen.templates import ROOT, files, roots

try:
    import jinja2
except ImportError as error:  # a machine that only runs kernels has none
    raise ToolchainError(
        f"no source can be generated here: {error}; run: pip install jitgen"
    ) from error

_BLANK = re.compile(r"\n{3,}")
_PROVIDES = re.compile(r"^## Provides: (?!none$)", re.MULTILINE)
_HEADER = re.compile(r"((?:##[^\n]*\n)+)##[^\n]*\n")
_INCLUDED = re.compile(r"^#% include (?!\"shared/header\.).+\.py\.jinja\"$", re.MULTILINE)
SECTION = re.compile(r"# ([\w/]+\.py\.jinja)")
"""Comment that names the partial of the lines below it."""

_SAFE_TEXT = re.compile(r"[A-Za-z0-9_]+")
_SAFE_JSON = re.compile(r"[A-Za-z0-9_{}:,\"]+")
"""
The allowed characters of a config's canonical JSON; none of them can end the comment that contains
it.
"""


@frozen
class Source:
    """
    A rendered kernel.

    Attributes:
        config: What it was rendered from.
        arch: The target.
        name: Name of the kernel, and the symbol that its artifact exports.
        text: The Python source; the same config and target always give the same bytes.
        entry: The function in it that the symbol calls; by default that of the config's operation.
    """

    config: Config
    arch: Arch
    name: str
    text: str
    entry: str = ""

    def __post_init__(self) -> None:
        if not self.entry:
            object.__setattr__(self, "entry", self.config.op)


class Loader(jinja2.FileSystemLoader):
    """Loads templates with a comment that names each partial before its text."""

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        """
        Return a template's text, with comments that name the template at its beginning and after
        each include.
        """
        text, path, is_current = super().get_source(environment, template)
        return self.prepared(text, template), path, is_current

    def prepared(self, text: str, template: str) -> str:
        """Return the text that Jinja reads in place of the `text` of a template."""
        return _named(text, template)


def _named(text: str, name: str) -> str:
    """Return a template's text with comments that name the template of the lines below."""
    if _PROVIDES.search(text) is not None:
        text = _HEADER.sub(lambda header: f"{header[1]}# {name}\n", text, count=1)
    return _INCLUDED.sub(lambda line: f"{line[0]}\n##\n\n# {name}", text)


def _line(path: str, line: int) -> int:
    """Return the line of a template's file that became `line` of the text that `_named` makes."""
    added = 0
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    for number, text in enumerate(lines, 1):
        if number + added >= line:
            return number
        added += 3 * bool(_INCLUDED.fullmatch(text))
    return len(lines)


@cache
def environment(root: Path) -> jinja2.Environment:
    """
    Return the Jinja environment of the templates below `root`, which may include those of jitgen.
    Statements are lines with a prefix, so that an unrendered template parses as Python.
    """
    return configured(jinja2.Environment, Loader(roots(root)))


def read_templates(template: Template) -> None:
    """
    Parse every file that a template refers to, so that rendering in this process and in its forks
    need not.
    """
    for name in files(template):
        environment(template.root).get_template(name)


_Environment = TypeVar("_Environment", bound=jinja2.Environment)


def configured(kind: type[_Environment], loader: Loader) -> _Environment:
    """Return an environment of class `kind`, configured as the templates require."""
    made = kind(
        loader=loader,
        line_statement_prefix="#%",
        line_comment_prefix="##",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # as digests of templates are taken once
        autoescape=False,  # the output is Python; `_plain` guards what gets into it
    )
    made.filters["comment_lines"] = _comment_lines
    return made


def _comment_lines(text: str) -> str:
    """Return a text for a comment, broken at commas into lines that fit."""
    lines = [""]
    for part in re.findall("[^,]+,?", text):
        if len(lines[-1]) + len(part) > given.COMMENT_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n#     ".join(lines)


def _plain(name: str, value: object) -> object:
    """
    Return a value for a source, after checking that it is a number, a boolean, a plain word or the
    config's JSON: rendered text is code that runs.
    """
    safe = _SAFE_JSON if name == "config_json" else _SAFE_TEXT
    if isinstance(value, (bool, int)) or (isinstance(value, str) and safe.fullmatch(value)):
        return value
    raise RenderError(f"{name}={value!r} may not be written into a generated source")


def values(config: Config, arch: Arch) -> dict[str, object]:
    """
    Return the values for a kernel's template, by name.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
        RenderError: A value may not be written into a source.
    """
    return {key: _plain(key, value) for key, value in parameters(config, arch).items()}


def render(config: Config, arch: Arch | str, root: Path | None = None) -> Source:
    """
    Return the source of `config` for `arch`.

    Args:
        config: The config.
        arch: The target.
        root: A folder with another version of the template; files that it lacks are taken from
            jitgen.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
        RenderError: The template failed; the message names its file, its line and the config.
    """
    arch = Arch.parse(arch)
    start = time.perf_counter()
    template, declared = template_of(config, arch), values(config, arch)
    is_own = template.root == ROOT
    if root is not None:
        template = template._replace(root=root)
    name = config.name(arch)
    try:
        text = _tidy(environment(template.root).get_template(template.entry).render(declared))
        # Not ast.parse(): up to Python 3.11.7 two threads in it at once raise SystemError.
        compile(text, template.entry, "exec", dont_inherit=True)
    except jinja2.TemplateSyntaxError as error:
        line = _line(error.filename or template.entry, error.lineno)
        raise RenderError(f"{error.name}:{line}: {error.message} (for {name})") from error
    except jinja2.TemplateError as error:
        raise RenderError(f"{_place(error, template.entry)}: {error} (for {name})") from error
    except SyntaxError as error:
        raise RenderError(f"{template.entry} gave no Python: {error} (for {name})") from error
    if is_own:  # the pass knows how jitgen's templates are written, and no other's
        text = specialised(text, frozenset({config.op, "arguments"}))
    text = _sections(text)
    seconds = time.perf_counter() - start
    events.emit(Event(kind=EventKind.RENDER, kernel=name, seconds=seconds))
    return Source(config=config, arch=arch, name=name, text=text)


def source_of(config: Config, arch: Arch, text: str = "") -> Source:
    """
    Return the source of `config` for `arch`: `text` if it is given (an edited source, or that of an
    entry), otherwise the rendered one.

    Raises:
        As `render`.
    """
    if not text:
        return render(config, arch)
    return Source(config=config, arch=arch, name=config.name(arch), text=text)


def _tidy(text: str) -> str:
    """Return a text without the empty lines that Jinja leaves where a partial has its comments."""
    return _BLANK.sub("\n\n\n", text).strip("\n") + "\n"


def _sections(text: str) -> str:
    """
    Return a text without the name comments of partials that have no lines, and without the same
    name twice in a row.
    """
    kept: list[str] = []
    current, waiting = "", ""
    for line in text.split("\n"):
        if SECTION.fullmatch(line):
            waiting = line
        elif waiting and line:
            if waiting != current and kept:
                while kept and not kept[-1]:
                    kept.pop()
                is_first = not kept or kept[-1].startswith("#")
                kept += [*([""] * (1 if is_first else 2)), waiting]
            current, waiting = waiting, ""
            kept.append(line)
        else:
            kept.append(line)
    return _tidy("\n".join(kept))


def _place(error: BaseException, entry: str) -> str:
    """Return file and line of the innermost template frame of `error`."""
    place, trace = entry, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(".jinja"):
            path = trace.tb_frame.f_code.co_filename
            place = f"{path}:{_line(path, trace.tb_lineno)}"
        trace = trace.tb_next
    return place.removeprefix(f"{ROOT}/")
