# SPDX-License-Identifier: Apache-2.0
"""
The kernel config: everything that changes the generated source, and nothing else.

Sizes (M, N, K, the number of groups, the number of SMs) are never part of it: one kernel serves
every shape.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from jitgen.errors import ConfigError
from jitgen.model.arch import Arch
from jitgen.model.dtypes import DType, Layout, Op, ScaleGranularity
from jitgen.text import shown

MAX_RASTER = 1024
"""More is no order of use, and raster x tiles along N has 32 bits in a kernel."""


class _Part:
    """What all parts of a config share: type checks at construction and an exact JSON form."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if value is not None or not spec.metadata["is_optional"]:
                value = _checked(spec.name, spec.metadata["type"], value)
                most = spec.metadata["most"]
                if most is not None and value > most:
                    raise ConfigError(f"{spec.name} must be at most {most} (got {value})")
                object.__setattr__(self, spec.name, value)

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form: only objects, strings, ints, booleans and null."""
        document: dict[str, Any] = {}
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            document[spec.name] = value.to_json() if isinstance(value, _Part) else _plain(value)
        return document

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the part that `to_json` wrote; a field with a default may be left out.

        Raises:
            ConfigError: `document` is no object, or has an unknown, missing or bad field.
        """
        specs = {spec.name: spec for spec in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if not isinstance(document, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object with {', '.join(specs)}")
        if unknown := sorted(set(document) - set(specs)):
            raise ConfigError(
                f"{cls.__name__} has no field {shown(unknown[0])}; allowed: {', '.join(specs)}"
            )
        values = {
            name: specs[name].metadata["type"].from_json(value)
            if _is_part(specs[name].metadata["type"])
            else value
            for name, value in document.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from None


def _is_part(kind: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, _Part)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value


def _checked(name: str, kind: Any, value: Any) -> Any:
    """Return `value` as a `kind`, or raise the ConfigError that names the field."""
    if kind is int:
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} must be an integer of at least 1 (got {shown(value)})")
        return value
    if kind is bool or _is_part(kind):
        if type(value) is not kind:
            raise ConfigError(f"{name} must be a {kind.__name__} (got {shown(value)})")
        return value
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} must be one of {', '.join(kind)} (got {shown(value)})") from None


def _of(kind: type, *, is_optional: bool = False, most: int | None = None, **options: Any) -> Any:
    """
    A dataclass field whose value is checked to be a `kind` (or None where `is_optional`), at most
    `most`.
    """
    return field(metadata={"type": kind, "is_optional": is_optional, "most": most}, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile(_Part):
    """Rows, columns and depth of the output tile that one CTA computes, in elements."""

    m: int = _of(int)
    n: int = _of(int)
    k: int = _of(int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(_Part):
    """
    CTAs that share operands by multicast.

    (2, 1) puts two tiles of different rows and the same columns together: they share b. (1, 2)
    shares a.
    """

    m: int = _of(int, default=1)
    n: int = _of(int, default=1)

    @property
    def size(self) -> int:
        """CTAs in one cluster."""
        return self.m * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands(_Part):
    """Element types, and how many values share one scale."""

    a_dtype: DType = _of(DType, default=DType.E4M3)
    b_dtype: DType = _of(DType, default=DType.E4M3)
    out_dtype: DType = _of(DType, default=DType.BF16)
    scale_granularity: ScaleGranularity = _of(ScaleGranularity, default=ScaleGranularity.BLOCK128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(_Part):
    """
    Buffers in flight.

    Attributes:
        num_acc_stage: Accumulator buffers; on sm_90a 1 is cooperative (all math warpgroups on one
            tile).
        num_ab_stage: Operand stages in shared memory; None takes as many as fit, up to what was
            ever of use.
    """

    num_acc_stage: int = _of(int, default=1)
    num_ab_stage: int | None = _of(int, is_optional=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(_Part):
    """
    Order and memory hints; the defaults do not show in a kernel's name.

    Attributes:
        raster: Cluster tiles along M that are computed before N advances, so that they share b in
            L2; at most 1024.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).
        stream_b: Mark b as read once, so that it does not push a out of L2.
        split_k: CTAs of a cluster that take consecutive parts of K of the same tile; then each adds
            up and stores its share of the columns. For fewer tiles than SMs.
    """

    raster: int = _of(int, most=MAX_RASTER, default=8)
    use_pdl: bool = _of(bool, default=True)
    stream_b: bool = _of(bool, default=False)
    split_k: int = _of(int, default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig(_Part):
    """
    One kernel, before its target is known.

    Example::

        config = KernelConfig(layout="ragged", operands=Operands(), tile=Tile(m=128, n=128, k=128))
        config.name("sm_90a")
        # 'grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a'
    """

    op: Op = _of(Op, default=Op.GROUPED_GEMM)
    layout: Layout = _of(Layout)
    operands: Operands = _of(Operands, default=Operands())
    tile: Tile = _of(Tile)
    cluster: Cluster = _of(Cluster, default=Cluster())
    pipeline: Pipeline = _of(Pipeline, default=Pipeline())
    schedule: Schedule = _of(Schedule, default=Schedule())

    def name(self, arch: Arch | str) -> str:
        """
        Return the readable, unique name: a valid C symbol and file name that `parse` reads back.
        """
        operands, tile, cluster = self.operands, self.tile, self.cluster
        pipeline, schedule = self.pipeline, self.schedule
        parts = [
            f"{self.op}_{self.layout}",
            f"{operands.a_dtype}_{operands.b_dtype}",
            f"{operands.scale_granularity}_{operands.out_dtype}",
            f"t{tile.m}x{tile.n}x{tile.k}_c{cluster.m}x{cluster.n}_acc{pipeline.num_acc_stage}",
        ]
        if pipeline.num_ab_stage is not None:
            parts.append(f"ab{pipeline.num_ab_stage}")
        if schedule.raster != Schedule().raster:
            parts.append(f"raster{schedule.raster}")
        if not schedule.use_pdl:
            parts.append("nopdl")
        if schedule.stream_b:
            parts.append("streamb")
        if schedule.split_k != Schedule().split_k:
            parts.append(f"splitk{schedule.split_k}")
        return "_".join([*parts, str(arch)])

    @classmethod
    def parse(cls, name: str) -> tuple[KernelConfig, Arch]:
        """
        Return the config and target that `name` stands for; the inverse of `name`.

        Raises:
            ConfigError: `name` is no kernel name; the message shows one.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConfigError(
                f"{shown(name)} is no kernel name; one looks like "
                "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a"
            )
        part = match.groupdict()
        document = {
            "layout": part["layout"],
            "operands": {spec.name: part[spec.name] for spec in dataclasses.fields(Operands)},
            "tile": {side: int(part[f"tile_{side}"]) for side in ("m", "n", "k")},
            "cluster": {side: int(part[f"cluster_{side}"]) for side in ("m", "n")},
            "pipeline": {
                name: int(part[name])
                for name in ("num_acc_stage", "num_ab_stage")
                if part[name] is not None
            },
            "schedule": {
                "raster": int(part["raster"] or Schedule().raster),
                "use_pdl": part["nopdl"] is None,
                "stream_b": part["streamb"] is not None,
                "split_k": int(part["split_k"] or Schedule().split_k),
            },
        }
        config = cls.from_json(document)
        return config, Arch.parse(part["arch"])


_NAME = re.compile(
    r"grouped_gemm_(?P<layout>[a-z]+)_(?P<a_dtype>[a-z0-9]+)_(?P<b_dtype>[a-z0-9]+)"
    r"_(?P<scale_granularity>[a-z0-9]+)_(?P<out_dtype>[a-z0-9]+)"
    r"_t(?P<tile_m>\d{1,9})x(?P<tile_n>\d{1,9})x(?P<tile_k>\d{1,9})"
    r"_c(?P<cluster_m>\d{1,9})x(?P<cluster_n>\d{1,9})"
    r"_acc(?P<num_acc_stage>\d{1,9})(_ab(?P<num_ab_stage>\d{1,9}))?(_raster(?P<raster>\d{1,9}))?"
    r"(?P<nopdl>_nopdl)?(?P<streamb>_streamb)?(_splitk(?P<split_k>\d{1,9}))?_(?P<arch>cpu|sm_\d+a?)"
)


def canonical_json(document: Any) -> str:
    """
    Return the one JSON text of `document`: sorted keys, no spaces, ASCII. Digests are taken of it.
    """
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
