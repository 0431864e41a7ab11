# SPDX-License-Identifier: Apache-2.0
"""A small model of expert layers for tests of training, and its training by FSDP2."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import jitgen
from jitgen.layer import reference

TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 48, 6, 2, 32, 32
CONFIG = jitgen.MoEConfig(hidden=HIDDEN, intermediate=INTERMEDIATE, experts=EXPERTS, top_k=TOP_K)

KINDS = ("jitgen", "bf16", "f32")
"""What computes the experts: kernels, torch in the same types, torch in float32."""


class Layer(nn.Module):
    """A router and experts behind a norm, added to what they get; all parameters are float32."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(EXPERTS, HIDDEN) / HIDDEN**0.5)
        self.w13 = nn.Parameter(torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / HIDDEN**0.5)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5)

    def forward(self, x: Tensor, kind: str) -> Tensor:
        normed = nn.functional.rms_norm(x, (HIDDEN,))
        logits = normed @ self.router.T
        if kind == "jitgen":
            routing = jitgen.route(logits, top_k=TOP_K)
            given = (each.bfloat16() for each in (normed, self.w13, self.w2))
            found = jitgen.moe(*given, *routing[:2], sorting=routing)
            return x + found.float()
        weights, ids = logits.softmax(-1).topk(TOP_K)
        weights = weights / weights.sum(1, keepdim=True)
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        rows, w13, w2 = (each.to(dtype) for each in (normed, self.w13, self.w2))
        every = torch.einsum("th,enh->etn", rows, w13)
        gate, up = every[..., :INTERMEDIATE], every[..., INTERMEDIATE:]
        every = torch.einsum("eti,ehi->teh", nn.functional.silu(gate) * up, w2)
        chosen = every.gather(1, ids[..., None].expand(-1, -1, HIDDEN))
        return x + (chosen.float() * weights[..., None]).sum(1)


class Model(nn.Module):
    """Three layers between an embedding and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.into, self.out = nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for layer in self.layers:
            x = layer(x, self.kind)
        found: Tensor = self.out(x)
        return found


def losses(kind: str, steps: int) -> list[float]:
    """Return the loss of each step of a model that learns a function of its inputs."""
    model = Model(kind)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    chance = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        x = torch.randn(TOKENS, 8, generator=chance)
        wanted = torch.sin(2 * x) * x.roll(1, 1)
        loss = nn.functional.mse_loss(model(x), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    return found


class Sharded(nn.Module):
    """Two layers of experts with bfloat16 parameters, and their routers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.routers = nn.ModuleList(
            nn.Linear(HIDDEN, EXPERTS, bias=False, dtype=torch.bfloat16) for _ in range(2)
        )
        self.experts = nn.ModuleList(jitgen.MoELayer(CONFIG, weights()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for router, experts in zip(self.routers, self.experts, strict=True):
            routing = jitgen.route(router(x).float(), top_k=TOP_K)
            x = x + experts(x, *routing[:2], sorting=routing)
        return x


def weights() -> jitgen.ExpertWeights:
    """Return experts whose matrices are parameters."""
    w13 = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / HIDDEN**0.5
    w2 = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5
    return jitgen.ExpertWeights(w13=nn.Parameter(w13.bfloat16()), w2=nn.Parameter(w2.bfloat16()))


def _loss(model: nn.Module, rank: int, step: int, device: torch.device) -> Tensor:
    chance = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(TOKENS, HIDDEN, generator=chance).bfloat16().to(device)
    return model(x).float().square().mean()  # type: ignore[no-any-return]


def train_sharded(
    rank: int, ranks: int, store: Path, device: torch.device, steps: int = 2
) -> float:
    """
    Train by FSDP2 with other processes, on CPUs or each on a GPU, and alone on the tokens of all
    ranks; return by how much the gradients of the last step differ, as a part of their norm.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    files = dist.FileStore(str(store), ranks)
    dist.init_process_group(backend, store=files, rank=rank, world_size=ranks)
    sharded, alone = Sharded().to(device), Sharded().to(device)
    mesh = init_device_mesh(device.type, (ranks,))
    for each in (*sharded.experts, sharded):
        fully_shard(each, mesh=mesh)
    optimisers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (sharded, alone)]
    for step in range(steps):
        for optimiser in optimisers:
            optimiser.zero_grad()
        _loss(sharded, rank, step, device).backward()  # type: ignore[no-untyped-call]
        every = [_loss(alone, each, step, device) for each in range(ranks)]
        (sum(every) / ranks).backward()  # type: ignore[union-attr]
        pairs = zip(sharded.parameters(), alone.parameters(), strict=True)
        error = max(
            reference.relative_error(mine.grad.full_tensor(), wanted.grad)  # type: ignore[union-attr, arg-type]
            for mine, wanted in pairs
        )
        for optimiser in optimisers:
            optimiser.step()
    dist.barrier()  # a process that ends early ends the connections of the others
    dist.destroy_process_group()
    return error


if __name__ == "__main__":
    place, count, path, *kind = sys.argv[1:]
    on = torch.device("cuda", int(place)) if kind == ["cuda"] else torch.device("cpu")
    print(train_sharded(int(place), int(count), Path(path), on))
