# SPDX-License-Identifier: Apache-2.0
"""Train, record and save; or show how uneven a file's rows are."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from jitgen.bench.choice.cases import skewed_cases
from jitgen.bench.choice.recorded import SHIPPED, Record, load, record, save
from tests.record_routings import __doc__ as usage
from tests.record_routings.model import CONTEXT, LAYERS, Model, batch, next_byte_loss, train

ROOT = Path(__file__).parents[2]
MIXTURES = {8: (2, 192), 64: (6, 48), 128: (8, 32)}
"""By the number of experts: the number of experts of a token, and the hidden size of an expert."""

DECODED, PROMPTS = (16, 64), (512, 4096)
"""Tokens of a batch: the last one of so many texts, and whole texts of `CONTEXT` tokens."""

HELD_OUT = 10
"""Every tenth file is not trained on; batches are recorded of these."""

ABOUT = (
    "Routings of small mixture-of-experts language models over bytes, {layers} layers, trained for "
    "{steps} steps on the sources and documentation of jitgen, recorded on files that were held "
    "out. They are not of the models whose sizes they are measured with. Made by: "
    "python -m tests.record_routings"
)


def texts() -> tuple[Tensor, Tensor]:
    """Return the bytes to train on, and those that are held out."""
    paths = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "jitgen").rglob("*.py")])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, path in enumerate(paths):
        parts[number % HELD_OUT == 0].append(path.read_bytes())
    trained, held = (
        torch.frombuffer(bytearray(b"".join(each)), dtype=torch.uint8) for each in parts
    )
    return trained.long(), held.long()


@torch.no_grad()
def recorded(model: Model, text: Tensor, experts: int, seed: int) -> Iterator[Record]:
    """Yield a record of each layer for each size of batch."""
    chance = torch.Generator().manual_seed(seed)
    for tokens in (*DECODED, *PROMPTS):
        is_decoded = tokens in DECODED
        model(batch(text, tokens if is_decoded else tokens // CONTEXT, chance)[:, :-1])
        for layer, each in enumerate(model.mixtures):
            ids = each.chosen.view(-1, CONTEXT, each.top_k)
            ids = ids[:, -1] if is_decoded else ids.flatten(0, 1)
            yield record(ids, experts=experts, model=f"bytes-{experts}", layer=layer)


def make(path: Path, steps: int) -> None:
    """Train each mixture, tell how well it reads, and write what was recorded."""
    trained, held = texts()
    found: list[Record] = []
    for experts, (top_k, hidden) in MIXTURES.items():
        torch.manual_seed(experts)
        start, model = time.perf_counter(), Model(experts, top_k, hidden)
        loss = train(model, trained, steps, seed=experts)
        with torch.no_grad():
            unseen = next_byte_loss(model, batch(held, 64, torch.Generator().manual_seed(1)))
        print(
            f"{experts} experts, {top_k} a token: {time.perf_counter() - start:.0f} s, "
            f"{loss:.2f} nats a byte at the end, {float(unseen):.2f} held out",
            flush=True,
        )
        found += recorded(model, held, experts, seed=experts + 1)
    save(found, path, ABOUT.format(layers=LAYERS, steps=steps))


def uneven(counts: Sequence[int]) -> tuple[float, float, float]:
    """
    Return the standard deviation and the largest of `counts`, both divided by their mean, and the
    part of them that is 0.
    """
    mean = sum(counts) / len(counts)
    return statistics.pstdev(counts) / mean, max(counts) / mean, counts.count(0) / len(counts)


def show(path: Path) -> None:
    """Print how uneven rows are: means over the records of a model and size, and over draws."""
    rows: dict[str, list[tuple[int, ...]]] = {}
    for each in load(path):
        rows.setdefault(f"{each.model}, {each.tokens} tokens", []).append(each.counts)
    for case in skewed_cases(80, 0):
        rows.setdefault(f"drawn: {case.routing}", []).append(case.row_counts)
    print(f"{'rows':28}{'deviation':>10}{'busiest':>10}{'empty':>8}")
    for name, every in rows.items():
        found = [statistics.fmean(part) for part in zip(*map(uneven, every), strict=True)]
        print(f"{name:28}{found[0]:10.2f}{found[1]:9.1f}x{found[2]:8.0%}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED)
    parser.add_argument("--show", type=Path, nargs="?", const=SHIPPED, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.show is None:
        make(given.output, given.steps)
    show(given.show or given.output)


if __name__ == "__main__":
    main()
