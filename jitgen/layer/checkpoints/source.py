# SPDX-License-Identifier: Apache-2.0
"""The source of a checkpoint's tensors: safetensors files, or tensors in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from errno import ENOENT
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints import files
from jitgen.support.frozen import frozen
from jitgen.support.text import printable, shown


@frozen
class Source:
    """
    Tensors by name, in files, which are opened on first use, or in memory.

    Attributes:
        what: Its name in errors.
        files: For each name the file with the tensor; empty for tensors in memory.
        tensors: Tensors in memory.
        folder: The folder of the files; None for tensors in memory.
        is_shard: Whether the name of the file says that it is one of several; the others may have
            more experts.
        opened: Open files, which are kept because a layer of DeepSeek-V3 has 1,536 tensors.
    """

    what: str
    files: Mapping[str, Path]
    tensors: Mapping[str, Tensor]
    folder: Path | None = None
    is_shard: bool = False
    opened: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, source: str | Path | Mapping[str, Tensor]) -> Source:
        """
        Return the tensors of a folder, a file, or a mapping.

        Raises:
            InputError: It has no tensors, or is of another type.
            ToolchainError: safetensors is not installed.
            OSError: A file cannot be read.
        """
        if isinstance(source, Mapping):
            for name in source:
                if not isinstance(name, str):
                    raise InputError(
                        "source", f"must have names that are text (got {shown(name)} among them)"
                    )
            return cls(what="the mapping", files={}, tensors=source)
        if not isinstance(source, str | Path):
            raise InputError(
                "source",
                "must be a folder or a file of safetensors, or tensors by their names "
                f"(got {type(source).__name__})",
            )
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(ENOENT, "no such folder or file of safetensors", str(path))
        return cls(
            what=printable(str(path)),
            files=files.places(path),
            tensors={},
            folder=path if path.is_dir() else path.parent,
            is_shard=files.is_shard(path),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors of the checkpoint."""
        return tuple(self.files or self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.files or name in self.tensors

    def __str__(self) -> str:
        """Return the source's name in errors."""
        return self.what

    def shape(self, name: str) -> tuple[int, ...]:
        """
        Return the shape of a tensor, without reading its values.

        Raises:
            InputError: There is no such tensor, or it is not a tensor.
            OSError: Its file cannot be read.
        """
        self._require(name)
        if name in self.tensors:
            return tuple(self._given(name).shape)
        reader = self._reader(name)
        try:
            return tuple(reader.get_slice(name).get_shape())
        except files.safetensors().SafetensorError as error:
            raise self._unreadable(name, error) from error

    def dtype(self, name: str) -> torch.dtype:
        """
        Return the type of a tensor, without reading its values.

        Raises:
            InputError: There is no such tensor, or it is not a tensor.
            OSError: Its file cannot be read.
        """
        shape = self.shape(name)
        found = self.read(name, (slice(0, 0),) if shape else ())
        return found.dtype

    def read(self, name: str, at: tuple[slice, ...] = ()) -> Tensor:
        """
        Return a tensor in its present memory, without a gradient. It may be a mapped file, and must
        not be written to.

        Args:
            name: Its name.
            at: The part of its first dimensions; all if left out.

        Raises:
            InputError: There is no such tensor, or it has no values.
            OSError: Its file cannot be read.
        """
        self._require(name)
        if name in self.tensors:
            return self._given(name)[at] if at else self._given(name)
        return self._stored(name, at)

    def _given(self, name: str) -> Tensor:
        """Return the plain values of a tensor in memory, without autograd or lazy flags."""
        value: object = self.tensors[name]
        if not isinstance(value, Tensor):
            raise InputError(
                "source", f"{name} must be a torch tensor (got {type(value).__name__})"
            )
        if value.is_nested or value.layout is not torch.strided:
            raise InputError("source", f"{name} must be a dense tensor (got {value.layout})")
        plain = value.detach()
        if type(plain) is not Tensor:
            raise InputError(
                "source",
                f"{name} must be a plain tensor of torch's (got {type(value).__name__})",
            )
        if plain.is_meta:
            raise InputError("source", f"{name} must have values (got one on the meta device)")
        return plain.resolve_conj().resolve_neg()

    def _stored(self, name: str, at: tuple[slice, ...]) -> Tensor:
        reader = self._reader(name)
        try:
            # a slice of all would refuse a number alone
            found: Tensor = reader.get_slice(name)[at] if at else reader.get_tensor(name)
        except files.safetensors().SafetensorError as error:
            raise self._unreadable(name, error) from error
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            # torch's own words, for a header with sizes that no tensor has
            raise self._unreadable(name, error) from error
        return found

    def _reader(self, name: str) -> Any:
        path = self.files[name]
        if path not in self.opened:
            self.opened[path] = files.opened(path)
        return self.opened[path]

    def _require(self, name: str) -> None:
        if name not in self:
            raise InputError("source", f"{self} has no tensor {name!r}, which the layer needs")

    def _unreadable(self, name: str, error: Exception) -> InputError:
        why = printable(" ".join(str(error).split()))
        return InputError("source", f"{name} cannot be read from {self.files[name]}: {why}")
