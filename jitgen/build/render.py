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
from jitgen.errors import RenderError
from jitgen.events import Event, EventKind, events
from jitgen.model import Arch, KernelConfig, require

_SAFE_TEXT = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A rendered kernel.

    Attributes:
        config: What it was rendered from.
        arch: The target.
        name: Name of the kernel, and the symbol that its artifact exports.
        text: The Python source; the same config and target always give the same bytes.
        entry: The function in it that the symbol calls.
    """

    config: KernelConfig
    arch: Arch
    name: str
    text: str
    entry: str = "grouped_gemm"


@cache
def environment() -> jinja2.Environment:
    """
    Return the one Jinja environment: line statements, so that a template parses as Python
    unrendered.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates.ROOT),
        line_statement_prefix="#%",
        line_comment_prefix="##",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # the output is Python; `_plain` guards what gets into it
    )


def _plain(name: str, value: Any) -> Any:
    """Let only numbers, booleans and plain words into a source: rendered text is code that runs."""
    if isinstance(value, (bool, int)) or (isinstance(value, str) and _SAFE_TEXT.fullmatch(value)):
        return value
    raise RenderError(f"{name}={value!r} may not be written into a generated source")


def parameters(config: KernelConfig, arch: Arch) -> dict[str, Any]:
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


def render(config: KernelConfig, arch: Arch | str) -> Source:
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
        text = environment().get_template(template.entry).render(declared)
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


def _place(error: BaseException, entry: str) -> str:
    """Return file and line of the innermost template frame of `error`."""
    place, trace = entry, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(".jinja"):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place.removeprefix(f"{templates.ROOT}/")
