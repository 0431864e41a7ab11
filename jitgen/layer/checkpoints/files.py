# SPDX-License-Identifier: Apache-2.0
"""
The files of a checkpoint: which one holds which tensor, by an index or by the files themselves.
"""

from __future__ import annotations

import importlib
import re
from errno import EIO, ENOENT
from pathlib import Path
from typing import Any

from jitgen.errors import InputError, ToolchainError
from jitgen.support.documents import BadDocument, parse_json, read_bounded
from jitgen.support.text import printable, shown

_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 2**26
"""Largest size of an index in bytes; that of DeepSeek-V3 has 9 MB."""

_ADAPTER = "adapter_config.json"
"""
File that marks a folder with an adapter, which transformers would apply when it loads the folder.
"""

_SHARD = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})\.safetensors")


def places(path: Path) -> dict[str, Path]:
    """
    Return the file of each tensor of a folder, or of a file.

    Raises:
        InputError: The files cannot be read, there are none, a tensor is in two of them, or one of
            several numbered files is missing.
        ToolchainError: safetensors is not installed.
        OSError: A file cannot be opened.
    """
    if path.is_dir() and (path / _ADAPTER).exists():
        raise InputError(
            "source",
            f"{path} has {_ADAPTER}: its weights are those of a model with an adapter, which is "
            "not read; merge the adapter into the weights, or keep it in another folder",
        )
    index = path / _INDEX
    if index.is_file():
        return _indexed(index)
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if path.is_dir():
        _require_all_shards(paths)
    found: dict[str, Path] = {}
    for each in paths:
        for name in opened(each).keys():  # noqa: SIM118  # of a file, which is no dict
            if name in found:
                raise InputError(
                    "source",
                    f"{path} has {shown(name)} twice, in {found[name].name} and in {each.name}: "
                    "give the file that counts",
                )
            found[name] = each
    if not found:
        raise InputError("source", f"{path} has no tensors in files of safetensors")
    return found


def is_shard(path: Path) -> bool:
    """Say whether a file is one of several, by its name."""
    found = _SHARD.fullmatch(path.name)
    return found is not None and int(found[3]) > 1


def opened(path: Path) -> Any:
    """
    Return a file of safetensors, opened.

    Raises:
        InputError: It is not a safetensors file.
        ToolchainError: safetensors is not installed.
        OSError: The file does not exist, or cannot be read.
    """
    files = safetensors()
    if not path.exists():
        raise FileNotFoundError(ENOENT, "no such file of safetensors", str(path))
    if not path.is_file():  # a pipe would never open, a folder would give an unclear error
        raise InputError("source", f"{path} must be a file of safetensors, and is no regular file")
    try:
        return files.safe_open(str(path), framework="pt")
    except files.SafetensorError as error:
        why = printable(" ".join(str(error).split()))
        raise InputError("source", f"{path} cannot be read: {why}") from error
    except OSError as error:  # it does not say which file
        raise OSError(error.errno or EIO, f"cannot be read ({error})", str(path)) from error


def safetensors() -> Any:
    """Return the module safetensors, of an optional package; raises ToolchainError without it."""
    try:
        return importlib.import_module("safetensors")
    except ImportError:
        raise ToolchainError(
            "checkpoints are read with safetensors; run: pip install 'jitgen[safetensors]'"
        ) from None


def _indexed(index: Path) -> dict[str, Path]:
    try:
        found = parse_json(read_bounded(index, _MAX_INDEX_BYTES), max_bytes=_MAX_INDEX_BYTES)
    except BadDocument as error:
        raise InputError("source", f"{index} is no index: {error}") from error
    files = found.get("weight_map") if isinstance(found, dict) else None
    if (
        not isinstance(files, dict)
        or not files
        or not all(isinstance(file, str) and "/" not in file for file in files.values())
    ):
        raise InputError("source", f"{index} has no weight_map from tensors to files beside it")
    return {str(name): index.parent / file for name, file in files.items()}


def _require_all_shards(paths: list[Path]) -> None:
    """Refuse numbered files if some are missing, because these may have further experts."""
    names = {path.name for path in paths}
    for path in paths:
        found = _SHARD.fullmatch(path.name)
        if found is None:
            continue
        stem, width = found[1], len(found[2])
        for number in range(1, int(found[3]) + 1):
            name = f"{stem}-{number:0{width}}-of-{found[3]}.safetensors"
            if name not in names:
                raise InputError("source", f"{path.parent} lacks {name}, which {path.name} names")
