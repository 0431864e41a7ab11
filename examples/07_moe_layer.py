# SPDX-License-Identifier: Apache-2.0
"""
A layer of experts in FP8: from a checkpoint to a result, with kernels that were compiled before.

The checkpoint is a tiny random one with the names of DeepSeek-V3's tensors; to write and read it
takes ``pip install 'jitgen[safetensors]'``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

import jitgen
from jitgen.layer import reference

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 8, 2, 512, 256
PREFIX = "model.layers.3.mlp"


def checkpoint(folder: Path) -> Path:
    """Write the experts of one layer, quantised by blocks of 128 x 128."""
    tensors = {}
    for expert in range(EXPERTS):
        for name, n, k in (
            ("gate_proj", INTERMEDIATE, HIDDEN),
            ("up_proj", INTERMEDIATE, HIDDEN),
            ("down_proj", HIDDEN, INTERMEDIATE),
        ):
            weight, scale = jitgen.quantize.per_block(torch.randn(n, k) * k**-0.5)
            tensors[f"{PREFIX}.experts.{expert}.{name}.weight"] = weight
            tensors[f"{PREFIX}.experts.{expert}.{name}.weight_scale_inv"] = scale
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path


def main() -> None:
    """Load, prewarm, freeze, run."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        layer = jitgen.MoELayer.from_checkpoint(
            checkpoint(Path(folder)), PREFIX, top_k=TOP_K, device=device, max_tokens=256
        )
    print(layer)
    arch = "sm_90a" if device == "cuda" else "cpu"
    report = layer.prewarm(arch)
    print(f"its plan has {len(report.rows)} kernels for {arch}")
    jitgen.freeze()  # from here on nothing is compiled
    try:
        x = torch.randn(300, HIDDEN, device=device).bfloat16()
        logits = torch.randn(300, EXPERTS, device=device)
        topk_weights, topk_ids = logits.softmax(-1).topk(TOP_K)
        out = layer(x, topk_weights, topk_ids)  # more tokens than 256: two passes
    finally:
        jitgen.freeze("off")
    expected = reference.moe(x, layer.weights, topk_weights, topk_ids, layer.config)
    error = reference.relative_error(out, expected)
    print(f"{tuple(out.shape)}, error {error:.1e} of the norm, which FP8 rounds twice")
    assert error < reference.TOLERANCE["block128"]


if __name__ == "__main__":
    main()
