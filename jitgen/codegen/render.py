# SPDX-License-Identifier: Apache-2.0
"""Config to source text, through Jinja."""

from __future__ import annotations

import dataclasses
import re
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
import jinja2.meta

from jitgen import templates
from jitgen.config import Arch, Config
from jitgen.config.part import canonical_json
from jitgen.errors import RenderError
from jitgen.events import Event, EventKind, events
from jitgen.targets.legality import require

_BLANK = re.compile(r"\n{3,}")
_SAFE_TEXT = re.compile(r"[A-Za-z0-9_]+")
_SAFE_JSON = re.compile(r"[A-Za-z0-9_{}:,\"]+")
"""What a config's canonical JSON has: nothing that could end the comment that it is written in."""

_COMMENT_WIDTH = 94


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A rendered kernel.

    Attributes:
        config: What it was rendered from.
        arch: The target.
        name: Name of the kernel, and the symbol that its artifact exports.
        text: The Python source; the same config and target always give the same bytes.
    """

    config: Config
    arch: Arch
    name: str
    text: str


@cache
def environment() -> jinja2.Environment:
    """
    Return the one Jinja environment: line statements, so that a template parses as Python
    unrendered.
    """
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates.ROOT),
        line_statement_prefix="#%",
        line_comment_prefix="##",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # as digests of templates are taken once
        autoescape=False,  # noqa: S701  # the output is Python; `_plain` guards what gets into it
    )
    made.filters["comment_lines"] = _comment_lines
    return made


def _comment_lines(text: str) -> str:
    """Return a text for a comment, broken at commas into lines that fit."""
    lines = [""]
    for part in re.findall("[^,]+,?", text):
        if len(lines[-1]) + len(part) > _COMMENT_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n#     ".join(lines)


def _plain(name: str, value: Any) -> Any:
    """
    Let only numbers, booleans, plain words and the config's JSON into a source: rendered text is
    code that runs.
    """
    safe = _SAFE_JSON if name == "config_json" else _SAFE_TEXT
    if isinstance(value, (bool, int)) or (isinstance(value, str) and safe.fullmatch(value)):
        return value
    raise RenderError(f"{name}={value!r} may not be written into a generated source")


def parameters(config: Config, arch: Arch) -> dict[str, Any]:
    """
    Return every value that a template may declare: the config's fields, flattened, and the derived
    numbers.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
    """
    derived = require(config, arch).derived
    operands, tile, cluster = config.operands, config.tile, config.cluster
    return {
        "name": config.name(arch),
        "config_json": canonical_json(config.to_json()),
        "layout": str(config.layout),
        **{
            field.name: str(getattr(operands, field.name)) for field in dataclasses.fields(operands)
        },
        "tile_m": tile.m,
        "tile_n": tile.n,
        "tile_k": tile.k,
        "cluster_m": cluster.m,
        "cluster_n": cluster.n,
        "num_acc_stage": config.pipeline.num_acc_stage,
        **dataclasses.asdict(config.schedule),
        **dataclasses.asdict(derived),  # type: ignore[call-overload]
    }


def used_parameters(family: str) -> frozenset[str]:
    """
    Return the free variables of a target's template files, which a test compares with the declared
    ones.
    """
    used: set[str] = set()
    for name in templates.files(family):
        text = (templates.ROOT / name).read_text(encoding="utf-8")
        used |= jinja2.meta.find_undeclared_variables(environment().parse(text))
    return frozenset(used)


def render(config: Config, arch: Arch | str) -> Source:
    """
    Return the source of `config` for `arch`.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`.
        RenderError: The template failed; the message names its file, its line and the config.
    """
    arch = Arch.parse(arch)
    start = time.perf_counter()
    template = templates.TEMPLATES[arch.family]
    values = parameters(config, arch)
    name = str(values["name"])
    declared = {
        key: _plain(key, value) for key, value in values.items() if key in template.parameters
    }
    try:
        text = _tidy(environment().get_template(template.entry).render(declared))
        # Not ast.parse(): up to Python 3.11.7 two threads in it at once raise SystemError.
        compile(text, template.entry, "exec", dont_inherit=True)
    except jinja2.TemplateSyntaxError as error:
        raise RenderError(f"{error.name}:{error.lineno}: {error.message} (for {name})") from error
    except jinja2.TemplateError as error:
        raise RenderError(f"{_place(error, template.entry)}: {error} (for {name})") from error
    except SyntaxError as error:
        raise RenderError(f"{template.entry} gave no Python: {error} (for {name})") from error
    seconds = time.perf_counter() - start
    events.emit(Event(kind=EventKind.RENDER, kernel=name, seconds=seconds))
    return Source(config=config, arch=arch, name=name, text=text)


def _tidy(text: str) -> str:
    """Return a text without the empty lines that Jinja leaves where a partial has its comments."""
    return _BLANK.sub("\n\n\n", text).strip("\n") + "\n"


def _place(error: BaseException, entry: str) -> str:
    """Return file and line of the innermost template frame of `error`."""
    place, trace = entry, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(".jinja"):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place.removeprefix(f"{templates.ROOT}/")
