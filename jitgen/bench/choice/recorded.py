# SPDX-License-Identifier: Apache-2.0
"""
Rows of experts as a router distributed them, recorded in a file that users can write themselves.

    {"about": "what this is", "records": [
    {"model": "mine", "layer": 3, "experts": 4, "top_k": 2, "tokens": 3, "counts": [3, 0, 1, 2]},
    ...]}

A record with ``matrices`` (pairs of N and K) is measured with these matrices; a record without them
is measured with the matrices of a published model that has the same number of experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

from jitgen.bench.cases import fields_of
from jitgen.bench.report import write
from jitgen.errors import ConfigError
from jitgen.support.documents import parse_json, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

SHIPPED = Path(__file__).with_name("recorded.json")
"""
Routings of small models; `python -m tests.record_routings` trains these for a few minutes and
records them.
"""

MATRICES: dict[int, tuple[tuple[int, int], ...]] = {
    8: ((32_768, 6144), (6144, 16_384)),  # Mixtral 8x22B
    32: ((5760, 2880), (2880, 2880)),  # gpt-oss-20b
    64: ((2816, 2048), (2048, 1408)),  # DeepSeek-V2-Lite
    128: ((1536, 2048), (2048, 768)),  # Qwen3-30B-A3B
    160: ((5120, 6144), (6144, 2560)),  # Qwen3-Coder-480B-A35B
    256: ((4096, 7168), (7168, 2048)),  # DeepSeek-V3
    384: ((4096, 7168), (7168, 2048)),  # Kimi-K2
}
"""N and K of gate and up, and of down, in the shipped plans, by the experts of their models."""

MOST_BYTES = 2**24
"""Largest file: 10,000 records of 512 experts."""

_MOST = {"layer": 9999, "experts": 4096, "top_k": 4096, "tokens": 2**20}
_LARGEST, _MOST_MATRICES = 2**20, 8  # an N or a K; pairs of them
_MODEL = re.compile(r"[\w./-]{1,64}", re.ASCII)


@frozen
class Record:
    """
    The rows that each expert of one layer got from one batch.

    Attributes:
        model: Name of the model: letters, digits, ``.``, ``_``, ``-`` and ``/``.
        layer: Number of the layer.
        experts: Number of experts.
        top_k: Experts of each token.
        tokens: Tokens of the batch.
        counts: Rows of each expert, ``tokens * top_k`` together.
        matrices: N and K of the layer's matrices; empty: those of `MATRICES`.
    """

    model: str
    layer: int
    experts: int
    top_k: int
    tokens: int
    counts: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not _MODEL.fullmatch(self.model):
            raise ConfigError(
                "model must be 1 to 64 letters, digits, '.', '_', '-' and '/' "
                f"(got {shown(self.model)})"
            )
        for name, most in _MOST.items():
            _whole(getattr(self, name), name, int(name != "layer"), most)
        if self.top_k > self.experts:
            raise ConfigError(f"top_k is {self.top_k}, and there are {self.experts} experts")
        if len(self.counts) != self.experts:
            raise ConfigError(
                f"counts must have a number for each of {self.experts} experts "
                f"(got {len(self.counts)})"
            )
        for count in self.counts:  # a token takes an expert once
            _whole(count, f"a count of {self.tokens} tokens", 0, self.tokens)
        if sum(self.counts) != self.tokens * self.top_k:
            raise ConfigError(
                f"counts must add up to {self.tokens * self.top_k}, {self.top_k} for each of "
                f"{self.tokens} tokens (got {sum(self.counts)})"
            )
        for each in (size for pair in self.matrices for size in pair):
            _whole(each, "a size of matrices", 1, _LARGEST)
        if not self.matrices and self.experts not in MATRICES:
            raise ConfigError(
                f"no shipped plan is of a model with {self.experts} experts, but of "
                f"{', '.join(map(str, MATRICES))}; say which sizes to measure: "
                '"matrices": [[N, K], ...]'
            )

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """N and K of each matrix that the rows are multiplied with."""
        return self.matrices or MATRICES[self.experts]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, without ``matrices`` if these are empty."""
        document = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        document["counts"] = list(self.counts)
        own = [list(pair) for pair in document.pop("matrices")]
        return document | ({"matrices": own} if own else {})

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the record that `document`, a JSON object, describes.

        Raises:
            ConfigError: A field is missing, unknown, or has a value that it may not have.
        """
        known = [spec.name for spec in fields(cls)]
        values = fields_of(document, "a record", known, known[:-1])
        counts, matrices = values["counts"], values.get("matrices", [])
        if not isinstance(counts, list):
            raise ConfigError(f"counts must be a list (got {shown(counts)})")
        if not isinstance(matrices, list) or len(matrices) > _MOST_MATRICES:
            raise ConfigError(
                f"matrices must be a list of at most {_MOST_MATRICES} (got {shown(matrices)})"
            )
        if wrong := [each for each in matrices if not isinstance(each, list) or len(each) != 2]:
            raise ConfigError(f"matrices must be pairs [N, K] (got {shown(wrong[0])})")
        pairs = tuple((n, k) for n, k in matrices)
        return cls(**{**values, "counts": tuple(counts), "matrices": pairs})


@frozen
class Recorded:
    """
    A recorded batch as the routing of a case; `jitgen.bench.choice.cases.Routing` is its
    counterpart for drawn batches.

    Attributes:
        number: Number of the batch in the file, from 1; it distinguishes batches of one layer.
        record: The record.
    """

    KIND: ClassVar[str] = "recorded"

    number: int
    record: Record

    def __str__(self) -> str:
        """Return the rows as tables show them: ``recorded 7 mine layer 3``."""
        return f"{self.KIND} {self.number} {self.record.model} layer {self.record.layer}"

    def deal(self, groups: int, rows: int) -> tuple[int, ...]:
        """
        Return the number of rows of each of `groups` groups; their sum is `rows`.

        Raises:
            ConfigError: The record has other numbers of groups or rows.
        """
        found = self.record.counts
        if (groups, rows) != (len(found), sum(found)):
            raise ConfigError(
                f"{self} has {sum(found)} rows of {len(found)} experts, and the problem {rows} of "
                f"{groups}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the recorded batch as JSON values."""
        return {"kind": self.KIND, "number": self.number, "record": self.record.to_json()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the object from the document that `to_json` returned."""
        return cls(number=int(document["number"]), record=Record.from_json(document["record"]))


def record(topk_ids: Any, *, experts: int, model: str, layer: int) -> Record:
    """
    Return the record of one batch. Waits for the device.

    Args:
        topk_ids: (tokens, top_k) integers on any device: the experts that a router chose for each
            token, as `jitgen.route` and `torch.topk` give them.
        experts: Number of experts, chosen or not.
        model: Name of the model in the record.
        layer: Number of the layer.

    Raises:
        ConfigError: `topk_ids` has another shape or type, or a value that is no index of an expert;
            a token has an expert twice; or `Record` does not allow a value.
    """
    if topk_ids.dim() != 2 or topk_ids.is_floating_point():
        raise ConfigError(
            f"topk_ids must be (tokens, top_k) integers (got {topk_ids.dtype} of shape "
            f"{tuple(topk_ids.shape)})"
        )
    tokens, top_k = topk_ids.shape
    ids = topk_ids.detach().cpu().long().sort(dim=1).values
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < experts:
        raise ConfigError(
            f"topk_ids must be from 0 to {experts - 1} (got {int(ids.min())} to {int(ids.max())})"
        )
    if bool((ids[:, 1:] == ids[:, :-1]).any()):
        raise ConfigError("topk_ids must name an expert once for each token")
    counts = ids.flatten().bincount(minlength=experts).tolist()
    return Record(
        model=model, layer=layer, experts=experts, top_k=top_k, tokens=tokens, counts=tuple(counts)
    )


def save(records: Sequence[Record], path: str | Path, about: str = "") -> None:
    """
    Write `records` to `path`, a line for each.

    Raises:
        ConfigError: The file cannot be written.
    """
    rows = [json.dumps(each.to_json(), separators=(",", ":")) for each in records]
    head = f'{{"about": {json.dumps(about)}, "records": [\n'
    write(head + ",\n".join(rows) + "\n]}\n", Path(path))


def load(path: Path = SHIPPED) -> tuple[Record, ...]:
    """
    Return the records of a file in the order in which it lists them.

    Raises:
        ConfigError: The file cannot be read, or does not hold records.
    """
    try:
        document = parse_json(read_bounded(path, MOST_BYTES), max_bytes=MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} does not hold routings: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} does not hold routings: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("records"), list):
        raise ConfigError(
            f"{path} does not hold routings: it needs an object with a list 'records'"
        )
    if not document["records"]:
        raise ConfigError(f"{path} does not hold routings: its list 'records' is empty")
    found = []
    for number, each in enumerate(document["records"], start=1):
        try:
            found.append(Record.from_json(each))
        except ConfigError as error:
            raise ConfigError(f"{path}: record {number}: {error}") from None
    return tuple(found)


def _whole(value: object, name: str, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(
            f"{name} must be a whole number from {least} to {most} (got {shown(value)})"
        )
