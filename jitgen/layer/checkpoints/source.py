# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a checkpoint are: in files of safetensors, or in memory already."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import field
from errno import ENOENT
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jitgen.documents import BadDocument, parse_json, read_bounded
from jitgen.errors import InputError, ToolchainError
from jitgen.frozen import frozen

_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 2**26
"""Of an index: DeepSeek-V3's has 9 MB."""


@frozen
class Source:
    """
    Tensors by name, each read when it is asked for.

    Attributes:
        what: What it is called in errors.
        files: For each name the file that holds it; empty for tensors in memory.
        tensors: Tensors in memory.
        opened: Files that were read from, for a layer of DeepSeek-V3 has 1,536 tensors.
    """

    what: str
    files: Mapping[str, Path]
    tensors: Mapping[str, Tensor]
    opened: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, source: str | Path | Mapping[str, Tensor]) -> Source:
        """
        Return the tensors of a folder, a file, or a mapping.

        Raises:
            InputError: It holds none, or is of another type.
            ToolchainError: safetensors is not installed.
            OSError: A file cannot be read.
        """
        if isinstance(source, Mapping):
            return cls(what="the given tensors", files={}, tensors=source)
        if not isinstance(source, str | Path):
            raise InputError(
                "source",
                "must be a folder or a file of safetensors, or tensors by their names "
                f"(got {type(source).__name__})",
            )
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(ENOENT, "no such folder or file of safetensors", str(path))
        return cls(what=str(path), files=_files(path), tensors={})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self.files or self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.files or name in self.tensors

    def __str__(self) -> str:
        """Return what it is called in errors."""
        return self.what

    def read(self, name: str, device: torch.device, rows: range | None = None) -> Tensor:
        """
        Return the tensor of a name on `device`.

        Args:
            name: Its name.
            device: Where it goes.
            rows: Which of its first dimension; None: all.

        Raises:
            InputError: There is none.
        """
        if name not in self:
            raise InputError("source", f"{self} has no tensor {name!r}, which the layer needs")
        part = slice(None) if rows is None else slice(rows.start, rows.stop)
        if name in self.tensors:
            return self.tensors[name][part].to(device)
        files, path = _safetensors(), self.files[name]
        try:
            if path not in self.opened:
                self.opened[path] = files.safe_open(str(path), framework="pt")
            return self.opened[path].get_slice(name)[part].to(device)  # type: ignore[no-any-return]
        except files.SafetensorError as error:
            raise InputError("source", f"{path} cannot be read: {error}") from error


def _files(path: Path) -> dict[str, Path]:
    """Return the file of each tensor: as the index says, or as the files say."""
    index = path / _INDEX
    if index.is_file():
        try:
            found = parse_json(read_bounded(index, _MAX_INDEX_BYTES), max_bytes=_MAX_INDEX_BYTES)
        except BadDocument as error:
            raise InputError("source", f"{index} is no index: {error}") from error
        places = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(places, dict) or not all(
            isinstance(file, str) and "/" not in file for file in places.values()
        ):
            raise InputError("source", f"{index} has no weight_map from tensors to files beside it")
        return {str(name): path / file for name, file in places.items()}
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    files = _safetensors()
    found_files: dict[str, Path] = {}
    for each in paths:
        try:
            with files.safe_open(str(each), framework="pt") as file:
                found_files |= dict.fromkeys(file.keys(), each)
        except files.SafetensorError as error:
            raise InputError("source", f"{each} cannot be read: {error}") from error
    if not found_files:
        raise InputError("source", f"{path} has no tensors in files of safetensors")
    return found_files


def _safetensors() -> Any:
    """Return the module, which is not needed for anything else."""
    try:
        return importlib.import_module("safetensors")
    except ImportError:
        raise ToolchainError(
            "checkpoints are read with safetensors; run: pip install 'jitgen[safetensors]'"
        ) from None
