# SPDX-License-Identifier: Apache-2.0
"""
Prepacked weights in files, so that a service need not prepack them at each start.

A file is a safetensors file. Each weight has two tensors, ``NAME.values`` and ``NAME.factor``. The
metadata has, under ``jitgen.prepared``, a JSON object with N, K, the layout and `row_spread` of
each name, and the format where it is not mxfp4. A file whose layout has another version is refused;
prepack the weights again. Files of earlier versions of jitgen lack `row_spread`; it is computed
when they are loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError, ToolchainError
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.text import shown

_METADATA = "jitgen.prepared"
_PARTS = ("values", "factor")
_SPREAD, _FORMAT = "row_spread", "format"


def save_prepacked(weights: Mapping[str, PrepackedWeights], path: str | Path) -> None:
    """
    Write weights to a file.

    Args:
        weights: The weights, by names that the caller chooses, such as those of layers.
        path: The file; an existing one is replaced.

    Raises:
        InputError: `weights` is empty, or has a value that is no `PrepackedWeights`; or the file
            cannot be written.
        ToolchainError: safetensors is not installed.
    """
    files = _safetensors("safetensors.torch")
    if not weights:
        raise InputError("weights", "must have at least one name (got none)")
    tensors: dict[str, Tensor] = {}
    facts: dict[str, dict[str, object]] = {}
    for name, each in weights.items():
        if not isinstance(each, PrepackedWeights):
            raise InputError(
                "weights", f"must be PrepackedWeights by name (got {type(each).__name__} at {name})"
            )
        tensors |= {f"{name}.{part}": _alone(getattr(each, part)) for part in _PARTS}
        facts[name] = {"n": each.n, "k": each.k, "layout": str(each.layout)}
        if each.row_spread is not None:
            facts[name][_SPREAD] = each.row_spread
        if each.format is not PrepackedFormat.MXFP4:
            facts[name][_FORMAT] = str(each.format)
    try:
        files.save_file(tensors, str(path), metadata={_METADATA: canonical_json(facts)})
    except _safetensors("safetensors").SafetensorError as error:
        raise InputError("path", f"{path} cannot be written: {error}") from error


def load_prepacked(
    path: str | Path, device: str | torch.device = "cpu"
) -> dict[str, PrepackedWeights]:
    """
    Read a file that `save_prepacked` wrote.

    Args:
        path: The file.
        device: The device of the tensors.

    Raises:
        InputError: It is not a file of prepacked weights, or this version of jitgen does not
            support its layout.
        ToolchainError: safetensors is not installed.
        OSError: The file cannot be read.
    """
    files = _safetensors("safetensors")
    try:
        with files.safe_open(str(path), framework="pt", device=str(device)) as file:
            facts = _facts(path, (file.metadata() or {}).get(_METADATA))
            return {
                name: PrepackedWeights(
                    **{part: file.get_tensor(f"{name}.{part}") for part in _PARTS}, **fact
                ).with_row_spread()
                for name, fact in facts.items()
            }
    except files.SafetensorError as error:
        raise InputError("path", f"{path} cannot be read: {error}") from error


def _alone(tensor: Tensor) -> Tensor:
    """
    Return `tensor`, or a copy if it is a part of a larger one, whose memory files cannot share.
    """
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _facts(path: str | Path, text: str | None) -> dict[str, dict[str, Any]]:
    """
    Return the facts of each weight in the metadata of a file: N, K, the layout, and where they are
    given the spread of rows and the format.
    """
    if text is None:
        raise InputError("path", f"{path} has no weights that jitgen prepacked")
    try:
        facts = parse_json(text.encode("utf-8", "replace"))
    except BadDocument:
        facts = None
    wanted = {"n", "k", "layout"}
    if not isinstance(facts, dict) or not all(
        isinstance(fact, dict) and fact.keys() - {_SPREAD, _FORMAT} == wanted
        for fact in facts.values()
    ):
        raise InputError("path", f"{path} says of its weights {shown(text)}, and not n, k, layout")
    return facts


def _safetensors(name: str) -> ModuleType:
    """Return a module of safetensors, an optional package; raises ToolchainError without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ToolchainError(
            "prepacked weights are kept in files of safetensors; run: pip install "
            "'jitgen[safetensors]'"
        ) from None
