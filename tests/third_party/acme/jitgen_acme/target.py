# SPDX-License-Identifier: Apache-2.0
"""The target: the host's own processor, under another name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jitgen.targets.protocol import Candidate, Device, HostLevel, Template, refuse_unless
from jitgen.targets.sums import SumOrder
from jitgen_acme.operation import RowsConfig, RowsProblem

VECTORS = (1, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsDerived:
    """What follows from a legal config: the bytes of a vector."""

    vector_bytes: int


class ScaleRows:
    """What acme_cpu says of scale_rows: see `jitgen.targets.protocol.Rules`."""

    generation = 1
    alignment = 4
    row_edges = (16, 256)
    sums = SumOrder(words="nothing: each value is scaled by itself", free=("vector",))

    def derive(self, config: RowsConfig) -> RowsDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_unless(
            config.vector in VECTORS,
            "E_VECTOR",
            f"vector={config.vector} is not one of {', '.join(map(str, VECTORS))}",
        )
        return RowsDerived(vector_bytes=4 * config.vector)

    def nearest(self, config: RowsConfig) -> RowsConfig:
        """Return the legal config that is nearest to a refused one."""
        return RowsConfig(vector=min(VECTORS, key=lambda vector: abs(vector - config.vector)))

    def configs(self) -> Iterator[RowsConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        for vector in (*VECTORS, 3):
            yield RowsConfig(vector=vector)

    def candidates(self, problem: RowsProblem) -> tuple[RowsConfig, ...]:
        """Return the few configs that may be chosen."""
        return tuple(RowsConfig(vector=vector) for vector in VECTORS if vector <= problem.k)

    def predict(
        self, problem: RowsProblem, config: RowsConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Return what `config` would take: a step for each vector, and one for each value left."""
        steps = problem.m * (problem.k // config.vector + problem.k % config.vector)
        return Candidate(
            config=config,
            cost=steps / device.clock_mhz,
            padding_ratio=1.0,
            waves=1,
            traffic_bytes=8 * problem.m * problem.k,
            limiter="stream",
        )

    def confidence_note(self, problem: RowsProblem, device: Device) -> str:
        """Return nothing: steps are counted."""
        return ""

    def check_sizes(self, problem: RowsProblem) -> None:
        """Take any size."""

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (
            Template(
                root=Path(__file__).resolve().parent / "templates",
                entry="acme/scale_rows.py.jinja",
                parameters=frozenset(("name", "config_json", "vector", "vector_bytes")),
            ),
        )


class AcmeCpu:
    """See `jitgen.targets.protocol.Target`."""

    name = "acme_cpu"
    family = "acme"
    is_gpu = False
    compiler_options = ()
    host_level = HostLevel.OWN
    devices = (
        Device(name="Acme One", num_sms=1, clock_mhz=1000, dram_gbps=10.0, l2_bytes=2**20),
        Device(name="Acme Two", num_sms=1, clock_mhz=2000, dram_gbps=10.0, l2_bytes=2**20),
    )
    operations = ("scale_rows",)

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU runs its kernels: none does."""
        return False

    def rules(self, op: str) -> ScaleRows:
        """Return what it says of an operation of `operations`."""
        return ScaleRows()


TARGET = AcmeCpu()
