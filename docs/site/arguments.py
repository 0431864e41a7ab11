# SPDX-License-Identifier: Apache-2.0
"""The text of docs/arguments.md: the arguments of calls, as `jitgen.ops.call` describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.site import docstrings
from jitgen.ops.call import Call
from jitgen.ops.every import CALLS
from jitgen.ops.grouped_gemm.prepacked_call import CALL as PREPACKED

_HEAD = """\
# Arguments of the calls

Names, types and defaults of the arguments of every operation, in the order in which graphs of torch
hold them. What each means is the first sentence of its docstring, which has the rest. `out` is
written; graphs have it first, or not at all. Graphs hold a config by its kernel's name. Those of
`jitgen.moe` and `jitgen.MoELayer`, which call operations, are in their docstrings.
"""
_TABLE = """
## {title}

| argument | type | default | meaning |
|---|---|---|---|
{rows}
"""
_TITLES = {"quantize": "`jitgen.quantize.mxfp8`, `mxfp4`, `nvfp4`"}
_KINDS = {
    "Config | Override": "{config} | Override",
    "Result": "tuple[Tensor, Tensor]",
    "Size": "int",
    "Weights": "Tensor | PrepackedWeights",
}
"""What the descriptions call types, and what callers give."""

_SENTENCE = re.compile(r"(.*?\S\.)(?:\s|$)", re.DOTALL)


def page() -> str:
    """Return the page about arguments."""
    calls = (call for call in CALLS if call is not PREPACKED)  # which grouped_gemm takes
    return _HEAD + "".join(map(_table, calls))


def _table(call: Call[object, object, object]) -> str:
    title = _TITLES.get(call.name, f"`jitgen.{call.name}`")
    return _TABLE.format(title=title, rows="\n".join(_rows(call)))


def _rows(call: Call[object, object, object]) -> Iterator[str]:
    defaults = call.arguments._field_defaults
    meanings = docstrings.entries(call.public.__doc__, "Args")
    meanings |= docstrings.entries(call.arguments.__doc__, "Attributes")
    for name, annotation in call.arguments.__annotations__.items():
        kind = getattr(annotation, "__forward_arg__", annotation)
        for word, shown in _KINDS.items():
            kind = re.sub(
                rf"\b{re.escape(word)}\b", shown.format(config=call.config.__name__), kind
            )
        default = f"`{defaults[name]!r}`" if name in defaults else ""
        found = _SENTENCE.match(meanings[name])
        meaning = found[1] if found else f"{meanings[name].rstrip(':')}."
        yield f"| `{name}` | `{_cell(kind)}` | {default} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")
