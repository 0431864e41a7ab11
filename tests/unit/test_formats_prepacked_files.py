# SPDX-License-Identifier: Apache-2.0
"""Prepacked weights in files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from jitgen.errors import InputError, ToolchainError
from jitgen.formats.prepacked import prepack_mxfp4_from
from jitgen.formats.prepacked_files import load_prepacked, save_prepacked

WEIGHTS = prepack_mxfp4_from(torch.linspace(-3, 3, 2 * 72 * 96).view(2, 72, 96), layout="wide1")


def test_files_keep_weights(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "layer.safetensors"
    save_prepacked({"up": WEIGHTS, "mlp.down": WEIGHTS.part(slice(1, 2))}, path)
    found = load_prepacked(path)

    assert list(found) == ["mlp.down", "up"]
    assert (found["up"].n, found["up"].k, found["up"].layout) == (72, 96, "wide1")
    assert torch.equal(found["up"].values, WEIGHTS.values)
    assert torch.equal(found["mlp.down"].weights(), WEIGHTS.weights()[1:])


def test_another_version_is_refused(tmp_path: Path) -> None:
    """By the layout's name, whose digit is its version."""
    pytest.importorskip("safetensors")
    path = tmp_path / "layer.safetensors"
    save_prepacked({"up": WEIGHTS}, path)
    path.write_bytes(path.read_bytes().replace(b"wide1", b"wide2"))

    with pytest.raises(InputError, match=r"must be one of .*prepack the weights again.*wide2"):
        load_prepacked(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch_files = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    torch_files.save_file({"x": torch.zeros(1)}, str(path))
    with pytest.raises(InputError, match="has no weights that jitgen prepacked"):
        load_prepacked(path)
    path.write_bytes(b"no such file")
    with pytest.raises(InputError, match="cannot be read"):
        load_prepacked(path)
    with pytest.raises(InputError, match="must have at least one name"):
        save_prepacked({}, path)
    with pytest.raises(InputError, match="must be PrepackedWeights by name"):
        save_prepacked({"x": torch.zeros(1)}, path)  # type: ignore[dict-item]


def test_without_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    path = tmp_path / "layer.safetensors"

    with pytest.raises(ToolchainError, match=r"pip install 'jitgen\[safetensors\]'"):
        save_prepacked({"up": WEIGHTS}, path)
    with pytest.raises(ToolchainError, match="safetensors"):
        load_prepacked(path)
