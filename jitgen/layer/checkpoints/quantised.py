# SPDX-License-Identifier: Apache-2.0
"""
Compares the statements of a model's config on quantised weights with the tensors.

A form knows one method of `quantization_config`: ``fp8`` in blocks of 128 x 128 with activation
scales computed at run time, or ``mxfp4``. Modules that the config lists as not converted have plain
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from jitgen.config.config import SCALE_BLOCK
from jitgen.layer.checkpoints.family import EXPERT, below
from jitgen.layer.checkpoints.model_config import Said
from jitgen.layer.checkpoints.part import Form
from jitgen.layer.checkpoints.scales import FLOAT, UE8M0
from jitgen.support.text import shown

_WORD = "quantization_config"
_FP8, _MXFP4 = "fp8", "mxfp4"
_METHODS = {"fp8_block128": _FP8, "mxfp4": _MXFP4}
_NOT_CONVERTED = ("modules_to_not_convert", "ignored_layers")
_FORMATS = {
    **dict.fromkeys(("ue8m0", "e8m0", "float8_e8m0fnu"), UE8M0),
    **dict.fromkeys(("float", "float32", "fp32"), FLOAT),
}
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "fmt": ("e4m3", "e4m3fn", "float8_e4m3fn"),
    "weight_block_size": ([SCALE_BLOCK, SCALE_BLOCK],),
    "activation_scheme": ("dynamic",),
    "expert_dtype": (_FP8,),
    "scale_fmt": tuple(_FORMATS),
}
"""Allowed statements on FP8; all may be absent."""

_ELSEWHERE = {"quant_method", "modules_to_convert", "dequantize", "kv_cache_scheme"}
"""Fields that do not affect how values and scales are read."""


def scale_format(said: Said | None, prefix: str, form: Form) -> str | None:
    """
    Return the format of scales that the config states; None if it states none.

    Raises:
        InputError: It is not understood, or contradicts the tensors.
    """
    if said is None or said.quantised is None:
        return None
    found = said.quantised
    method = found.get("quant_method")
    if not isinstance(method, str) or method.lower() not in (_FP8, _MXFP4):
        raise said.error(
            f"says {_WORD}.quant_method = {shown(method)}, and {_FP8} and {_MXFP4} are read; where "
            "it is not about these experts, give config= without it"
        )
    method = method.lower()
    is_skipped = _is_skipped(said, prefix, form)
    if method == _METHODS.get(form.encoding.name) and is_skipped:
        raise said.error(
            f"says in {_WORD} that {below(prefix, 'experts')} was not converted, and its tensors "
            f"are {method}"
        )
    if method != _METHODS.get(form.encoding.name):
        if _METHODS.get(form.encoding.name) is None and (
            is_skipped or found.get("dequantize") is True
        ):
            return None
        have = (
            "not quantised"
            if _METHODS.get(form.encoding.name) is None
            else _METHODS.get(form.encoding.name)
        )
        raise said.error(
            f"says {_WORD}.quant_method = {method}, and {below(prefix, form.reads[0])} is of "
            f"weights that are {have}; where it is not about these experts, give config= without it"
        )
    _require_known(said, found, method)
    return _FORMATS.get(_lowered(found.get("scale_fmt")))


def _require_known(said: Said, found: Mapping[str, Any], method: str) -> None:
    """Refuse statements that contradict what is read, and unknown ones."""
    allowed = _ALLOWED if method == _FP8 else {}
    for name, value in found.items():
        if name in (*_NOT_CONVERTED, *_ELSEWHERE) or value in (None, False, [], {}, ""):
            continue
        if name not in allowed:
            raise said.error(f"says {_WORD}.{name} = {shown(value)}, which is not understood")
        if (list(value) if isinstance(value, tuple) else _lowered(value)) not in allowed[name]:
            wanted = " or ".join(map(str, allowed[name]))
            raise said.error(f"says {_WORD}.{name} = {shown(value)}, and {wanted} is read")


def _lowered(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _is_skipped(said: Said, prefix: str, form: Form) -> bool:
    """Return whether the config lists the experts among the modules that were not converted."""
    entries: list[str] = []
    for name in _NOT_CONVERTED:
        value = (said.quantised or {}).get(name)
        if value is None:
            continue
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise said.error(f"must have a list of names for {_WORD}.{name} (got {shown(value)})")
        entries += value
    modules = {
        below(prefix, name.replace(EXPERT, ".0.").removesuffix(".weight")) for name in form.reads
    }
    return any(_is_named(module, entry) for module in modules for entry in entries)


def _is_named(module: str, entry: str) -> bool:
    """Return whether an entry names a module, a parent of it, or the last words of either."""
    words = module.split(".")
    paths = (".".join(words[:end]) for end in range(1, len(words) + 1))
    return any(fnmatchcase(path, entry) or path.endswith(f".{entry}") for path in paths)
