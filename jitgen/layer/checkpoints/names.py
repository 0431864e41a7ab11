# SPDX-License-Identifier: Apache-2.0
"""
Classifies the tensors below a layer's prefix: read, known to belong to other modules, or refused.

All tensors below ``experts.`` belong to the experts. So each of them is read or refused: leaving
out a bias, an adapter or a static scale would change the result. Tensors that are not below
``experts.`` belong to other modules:

=====================================  =========================================================
begins with                            is
=====================================  =========================================================
``gate``, ``router``, ``wg``,          the router's; so is ``experts.e_score_correction_bias``
``moe_statics``, ``expert_bias``,
``e_score_correction_bias``
``shared_expert``, ``shared_experts``, experts that all tokens share, and their gate
``share_expert``, ``shared_mlp``
a word with ``norm`` in it, and not    a norm in front of the layer or behind it
``expert``
``attention``, ``self_attn`` and such  the rest of a decoder layer, if the prefix is of one
``fc1_latent_proj``,                   projections to the experts' latent space and back
``fc2_latent_proj``
=====================================  =========================================================

or it is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from jitgen.errors import InputError
from jitgen.layer.checkpoints.family import EXPERT, below
from jitgen.layer.checkpoints.part import Form
from jitgen.layer.checkpoints.source import Source
from jitgen.support.text import printable

_OTHERS = re.compile(
    r"""(
        (gate|router|wg|moe_statics|expert_bias|e_score_correction_bias)
      | shared?_(experts?|mlp)(_gate)?
      | (?!\w*expert)\w*norm\w*
      | (self_|cross_|linear_)?(attn|attention)
      | fc[12]_latent_proj
      | experts\.e_score_correction_bias$
    )(\.|$)""",
    re.VERBOSE,
)
_EXPERTS = "experts"
_NUMBER = re.compile(r"experts\.(0|[1-9]\d{0,5})\.")
_ADAPTER = re.compile(r"^base_model\.|lora|adapter")
_ADVICE = (
    (_ADAPTER, "merge the adapter into the weights first"),
    (
        re.compile(r"(input|activation|act)\w*_scale|(input|activation)_global"),
        (
            "tokens are quantised with scales that are found for them, and not with static ones: "
            "ignore_input_scales=True leaves these out"
        ),
    ),
    (
        re.compile(r"bias"),
        "biases are read of gpt_oss alone: for others build jitgen.ExpertWeights with them",
    ),
    (
        re.compile(r"scale|zero|packed|qweight|absmax|g_idx"),
        "of quantised weights those are read that docs/moe-layer.md lists",
    ),
)
_MOST_NAMED = 4


def require_all_read(source: Source, prefix: str, family: str, form: Form, experts: int) -> None:
    """
    Refuse tensors that are not read and may change the results of experts.

    Raises:
        InputError: There are such tensors; the message names a few of them, and the names that are
            read.
    """
    known = {below(prefix, name) for name in _each((*form.reads, *form.unused), experts)}
    start, own = below(prefix, ""), f".{below(prefix, _EXPERTS)}."
    unread = [
        name
        for name in source.names
        if name not in known
        and (
            not _OTHERS.match(name.removeprefix(start))
            if name.startswith(start)
            else own in f".{name}" and _ADAPTER.search(name)
        )
    ]
    if not unread:
        return
    advice = dict.fromkeys(map(_advice, unread))
    raise InputError(
        "source",
        f"{source} holds {_some(unread)}, which {family} does not read and which may change what "
        f"experts compute: {'; '.join(advice)}. It reads {', '.join(form.reads)}",
    )


def count(source: Source, prefix: str, form: Form) -> int:
    """
    Return the number of experts of a layer, after checking that each has all tensors of the form.

    Raises:
        InputError: An expert lacks a tensor, or tensors of all experts have different numbers of
            experts.
        OSError: A file cannot be read.
    """
    if EXPERT not in form.reads[0]:
        return _common_length(source, prefix, form)
    start = below(prefix, "")
    numbers = {
        int(found[1])
        for name in source.names
        if name.startswith(start) and (found := _NUMBER.match(name.removeprefix(start)))
    }
    experts = max(numbers, default=-1) + 1
    for expert in range(experts):
        for name in form.reads:
            full = below(prefix, name.replace(EXPERT, f".{expert}."))
            if full not in source:
                raise InputError(
                    "source",
                    f"{source} lacks expert {expert} of {prefix!r}, or a part of it: it has no "
                    f"tensor {full!r}, which the layer needs",
                )
    return experts


def _advice(name: str) -> str:
    """Return advice on a tensor that is not read."""
    otherwise = "leave it out if it does not, or build jitgen.ExpertWeights with it"
    return next((text for pattern, text in _ADVICE if pattern.search(name)), otherwise)


def _each(names: Iterable[str], experts: int) -> Iterable[str]:
    """
    Yield every name of a form for every expert; a name without a place for an expert's number once.
    """
    for name in names:
        if EXPERT in name:
            yield from (name.replace(EXPERT, f".{expert}.") for expert in range(experts))
        else:
            yield name


def _common_length(source: Source, prefix: str, form: Form) -> int:
    """Return the number of experts in the tensors that hold all of them."""
    shapes = {}
    for name in form.reads:
        full = below(prefix, name)
        shapes[full] = source.shape(full)
        if not shapes[full]:
            raise InputError("source", f"{full} must have a row for each expert (got shape ())")
    lengths = {shape[0] for shape in shapes.values()}
    if len(lengths) > 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError("source", f"must have as many experts in each tensor (got {found})")
    return lengths.pop()


def _some(names: list[str]) -> str:
    """Return a few names as text, one of each kind first, and the number of the others."""
    kinds: dict[str, str] = {}
    for name in names:
        kinds.setdefault(_NUMBER.sub("experts.E.", name, count=1), name)
    first = list(kinds.values())[:_MOST_NAMED]
    more = len(names) - len(first)
    return printable(", ".join(first)) + (f" and {more} more of their kind" if more else "")
