# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of a grouped GEMM. The config is what changes a kernel's source (types, tile,
cluster, pipeline, schedule, epilogue); the problem is the sizes of one call, for which a config is
chosen.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jitgen.config import grammar
from jitgen.config.config import (
    MAX_SIZE,
    SCALE_BLOCK,
    BLayout,
    Config,
    DType,
    Layout,
    Numerics,
    Part,
    ScaleGranularity,
    of,
)
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.config.problem import GroupedRows
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.moved import renamed

MAX_RASTER = 1024
"""
Largest raster. Larger ones are useless, and raster times tiles along N must fit in 32 bits in a
kernel.
"""


@frozen
class Tile(Part):
    """Rows, columns and depth of the output tile that one CTA computes, in elements."""

    m: int = of(int)
    n: int = of(int)
    k: int = of(int)


@frozen
class Cluster(Part):
    """
    CTAs that share operands by multicast.

    In (2, 1), two tiles with different rows and the same columns share b; in (1, 2), two tiles
    share a.
    """

    m: int = of(int, default=1)
    n: int = of(int, default=1)

    @property
    def size(self) -> int:
        """CTAs in one cluster."""
        return self.m * self.n


@frozen
class Operands(Part):
    """
    Element types, how many values share one scale, and how b lies in memory.

    Attributes:
        a_dtype: Element type of a.
        b_dtype: Element type of b.
        out_dtype: Element type of the output.
        scale_granularity: How many values of b share one scale.
        a_scale_granularity: How many values of a share one scale; None: as for b. ``none`` (no
            scales) is only for a.
        b_layout: ``plain``; ``nmajor`` if N is contiguous instead of K; or the layout of a
            prepacked b, which contains its scales, so that b_scale is one float32 for each group.
    """

    a_dtype: DType = of(DType, default=DType.E4M3)
    b_dtype: DType = of(DType, default=DType.E4M3)
    out_dtype: DType = of(DType, default=DType.BF16)
    scale_granularity: ScaleGranularity = of(
        ScaleGranularity, default=ScaleGranularity.BLOCK128, after="b_dtype"
    )
    a_scale_granularity: ScaleGranularity | None = of(
        ScaleGranularity, is_optional=True, default=None, word="as"
    )
    b_layout: BLayout = of(
        BLayout,
        default=BLayout.PLAIN,
        word="b",
        always=False,
        reads=r"nmajor|(?:exact|folded|wide)\d+",  # whatever version: an error says which there are
    )

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.a_scale_granularity == self.scale_granularity:  # redundant: one config has one name
            object.__setattr__(self, "a_scale_granularity", None)
        if self.scale_granularity is ScaleGranularity.NONE:
            raise ConfigError(
                "scale_granularity must be one of b's, tensor where operands have no scales "
                "(got none, which a_scale_granularity may be)"
            )
        for name in ("b_dtype", "out_dtype"):
            if getattr(self, name) is DType.E4M3X2:
                raise ConfigError(f"{name} must be one type (got e4m3x2, which only a can be)")

    @property
    def text(self) -> str:
        """Text for errors that says which types and scales the operands have."""
        text = f"{self.a_dtype} x {self.b_dtype} -> {self.out_dtype} "
        text += f"with {self.scale_granularity} scales"
        if self.a_scale_granularity:
            text += f" of b, {self.a_scale_granularity} of a"
        if self.b_layout is BLayout.N_MAJOR:
            return text + ", b with N contiguous"
        return text + f" and weights prepacked as {self.b_layout}" * self.b_layout.is_prepacked


@frozen
class Pipeline(Part):
    """
    Numbers of buffers.

    Attributes:
        num_acc_stage: Accumulator buffers; on sm_90a, 1 means cooperative (all math warpgroups work
            on one tile).
        num_ab_stage: Operand stages in shared memory; None: as many as fit, up to the largest
            number that was useful.
    """

    num_acc_stage: int = of(int, default=1, word="acc", always=True)
    num_ab_stage: int | None = of(int, is_optional=True, default=None, word="ab")


@frozen
class Schedule(Part):
    """
    Order of tiles and memory hints; default values do not appear in a kernel's name.

    Attributes:
        raster: Cluster tiles along M that are computed before N advances, so that they share b in
            L2; at most 1024.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).
        stream_b: Mark b as read once, so that it does not push a out of L2.
        split_k: CTAs of a cluster that take consecutive parts of K of the same tile; then each adds
            up and stores its share of the columns. For fewer tiles than SMs.
        two_cta: Two CTAs multiply one tile with one instruction, each half of the rows, on targets
            with such instructions. Then tile.m is that of the pair, and the cluster counts CTAs.
        safe_selectors: For instructions that take scales from selected lanes: select only lanes
            that were seen to work on hardware.
        early_b: Load weights before the previous kernel has ended. The caller must guarantee that
            b, and offs or masked_m, were complete before that kernel let this one start; so the
            selector never sets this by itself. The guarantee holds if an earlier kernel wrote them
            and kernels wait before they let others start.
        swap_tail: Multiply the last rows of a group, if they are few, with swapped operands: the
            weights are M of the instructions, so fewer padding rows are multiplied.
        extra_rows: Give the last tile of a group up to 16 rows more than tile.m, with swapped
            operands, so that so few rows beyond whole tiles take no tile of their own.
        one_group: Take one group of few rows, the ragged layout alone, with weights as M of the
            instructions: each CTA computes a few columns over all of K. For any number of rows, but
            it reads b once for every tile.m of them.
    """

    raster: int = of(int, most=MAX_RASTER, default=8, word="raster")
    use_pdl: bool = of(bool, default=True, word="nopdl")
    stream_b: bool = of(bool, default=False, word="streamb")
    split_k: int = of(int, default=1, word="splitk")
    two_cta: bool = of(bool, default=False, word="twocta")
    safe_selectors: bool = of(bool, default=False, word="safesel")
    early_b: bool = of(bool, default=False, word="earlyb")
    swap_tail: bool = of(bool, default=False, word="swaptail")
    extra_rows: bool = of(bool, default=False, word="extrarows")
    one_group: bool = of(bool, default=False, word="onegroup")

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form, without rarely used fields that are off."""
        rare = {"safe_selectors", "early_b", "swap_tail", "extra_rows", "one_group"}
        return {n: v for n, v in Part.to_json(self).items() if v or n not in rare}


@frozen
class Epilogue(Part):
    """
    Steps between a sum and its store.

    Attributes:
        bias: Add a float32 vector of N for each group, before the result is rounded.
    """

    bias: bool = of(bool, default=False, word="bias")


@frozen
class GroupedGemmConfig(Config):
    """
    One grouped GEMM kernel, before its target is known.

    Example::

        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=128, n=128, k=128))
        config.name("sm_90a")
        # 'grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a'
    """

    op: ClassVar[str] = "grouped_gemm"
    layout: Layout = of(Layout)
    operands: Operands = of(Operands, default=Operands())
    tile: Tile = of(Tile, word="t")
    cluster: Cluster = of(Cluster, default=Cluster(), word="c")
    pipeline: Pipeline = of(Pipeline, default=Pipeline())
    schedule: Schedule = of(Schedule, default=Schedule())
    epilogue: Epilogue = of(Epilogue, default=Epilogue())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tile, cluster, schedule = self.tile, self.cluster, self.schedule
        text = f"{tile.m}x{tile.n}x{tile.k} c{cluster.m}x{cluster.n}" + " pair" * schedule.two_cta
        if schedule.raster != Schedule().raster:
            text += f" raster {schedule.raster}"
        text += " streaming b" * schedule.stream_b + " early b" * schedule.early_b
        text += " swapped tail" * schedule.swap_tail + " extra rows" * schedule.extra_rows
        text += " one group" * schedule.one_group
        return text if schedule.split_k == 1 else f"{text} split_k {schedule.split_k}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """
        Names of the arguments, for the emulator's findings and direct calls: operands, without
        a_scale if a has none; alpha and bias, if there are any; the tensor of groups, and out.
        """
        *operands, groups, out = super(GroupedGemmConfig, self).arguments  # noqa: UP008  # slots make the class anew
        if self.operands.a_scale_granularity is ScaleGranularity.NONE:
            operands.remove("a_scale")
        has_alpha = self.operands.scale_granularity is ScaleGranularity.NV16
        more = {"alpha": has_alpha, "bias": self.epilogue.bias}
        return (*operands, *(name for name, is_there in more.items() if is_there), groups, out)

    @property
    def settled(self) -> tuple[str, ...]:
        """Arguments that no earlier kernel may still be writing when this one starts."""
        return ("b", "groups") if self.schedule.early_b else ()

    def unfit(self, groups: int, k: int) -> str:
        """
        Return which sizes the kernel needs, where it cannot take a call with these; else nothing.
        Kernels take any sizes that their target allows, but those with `Schedule.one_group`.
        """
        if not self.schedule.one_group or (groups == 1 and k % SCALE_BLOCK == 0):
            return ""
        return f"one group and K a multiple of {SCALE_BLOCK} (got {groups} groups and K {k})"

    @classmethod
    def parse_name(cls, name: str) -> Self | None:
        """
        Return the config called `name`, which may spell out default values; None if `name` is not a
        name of this class.
        """
        document = grammar.parsed(cls, name)
        return None if document is None else cls.from_json(document)

    def parameters(self) -> dict[str, Any]:
        """Return every field under its name in templates."""
        granularity = self.operands.a_scale_granularity or self.operands.scale_granularity
        return grammar.parameters(self) | {"a_scale_granularity": str(granularity)}


_operands = cache(Operands)  # a plan asks for them thousands of times

_MAY_LACK_SCALES = (DType.BF16, DType.F16, DType.F32)

_USUAL = {"b_layout": "plain", "bias": False} | dict.fromkeys(
    ("b_dtype", "a_scale_granularity", "min_latency", "numerics")
)
"""Values of fields that the JSON form of a problem leaves out."""


@frozen
class GroupedGemmProblem(GroupedRows):
    """
    One grouped GEMM: `groups` matrices of (rows, k) times (n, k) transposed.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups G.
        m: Rows in all; for the masked layout the rows that are expected to be valid, over all
            groups.
        n: Columns of the output.
        k: Length of the sums.
        a_dtype: Element type of a.
        b_dtype: Element type of b; None: as a's.
        out_dtype: Element type of the output.
        scale_granularity: How many values share one scale.
        a_scale_granularity: How many values of a share one scale; None: as for b.
        b_layout: ``plain``, ``nmajor``, or the layout of a prepacked b.
        bias: Whether a vector of N is added for each group.
        min_latency: Whether calls with few rows use the kernel with the least latency; None: as
            JITGEN_MIN_LATENCY says. See `jitgen.selection.choice`.
        numerics: ``fast``, or ``invariant``, which allows only kernels that give a row the same
            bits; None: as JITGEN_NUMERICS says. See `jitgen.selection.numerics`.
    """

    op: ClassVar[str] = "grouped_gemm"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    a_dtype: DType = of(DType, default=DType.E4M3)
    b_dtype: DType | None = of(DType, is_optional=True, default=None)
    out_dtype: DType = of(DType, default=DType.BF16)
    scale_granularity: ScaleGranularity = of(ScaleGranularity, default=ScaleGranularity.BLOCK128)
    a_scale_granularity: ScaleGranularity | None = of(
        ScaleGranularity, is_optional=True, default=None
    )
    b_layout: BLayout = of(BLayout, default=BLayout.PLAIN)
    bias: bool = of(bool, default=False)
    min_latency: bool | None = of(bool, is_optional=True, default=None)
    numerics: Numerics | None = of(Numerics, is_optional=True, default=None)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.b_dtype == self.a_dtype:  # redundant: one problem has one name
            object.__setattr__(self, "b_dtype", None)
        types = self.operands  # with a mistake in them it cannot be made
        object.__setattr__(self, "a_scale_granularity", types.a_scale_granularity)

    def to_json(self) -> dict[str, Any]:
        """
        Return the exact JSON form, without fields at their usual values: type and layout of b,
        scales of a, bias, min_latency, numerics.
        """
        document = Part.to_json(self)
        return {n: v for n, v in document.items() if n not in _USUAL or v != _USUAL[n]}

    @property
    def operands(self) -> Operands:
        """Types, scale granularities and layout of b of every kernel for this problem."""
        return _operands(
            a_dtype=self.a_dtype,
            b_dtype=self.b_dtype or self.a_dtype,
            out_dtype=self.out_dtype,
            scale_granularity=self.scale_granularity,
            a_scale_granularity=self.a_scale_granularity,
            b_layout=self.b_layout,
        )

    @property
    def used_groups(self) -> int:
        """Number of groups with rows; in the contiguous layout at most the number of blocks."""
        if self.layout is not Layout.CONTIGUOUS:
            return self.groups
        return min(self.groups, -(-self.m // GROUP_ALIGNMENT))

    @property
    def traffic_bytes(self) -> int:
        """Bytes of a, of the used parts of b, and of out, each once: the least traffic of DRAM."""
        types, columns = self.operands, self.used_groups * self.n
        bits = self.k * (self.m * types.a_dtype.bits + columns * types.b_dtype.bits)
        return bits // 8 + self.m * self.n * types.out_dtype.bits // 8

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        text = self.operands.text + " and a bias" * self.bias
        is_default = self.b_dtype is None and self.scale_granularity is ScaleGranularity.BLOCK128
        if is_default and self.a_dtype in _MAY_LACK_SCALES:
            text += " (where operands have no scales, say tensor)"
        return text

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        types = self.a_dtype if self.b_dtype is None else f"{self.a_dtype}_{self.b_dtype}"
        operands = f"{types}_{self.scale_granularity}_{self.out_dtype}"
        if self.a_scale_granularity:
            operands += f"_as{self.a_scale_granularity}"
        if self.b_layout is not BLayout.PLAIN:
            operands += f"_b{self.b_layout}"
        operands += "_bias" * self.bias
        text = f"{self.layout}_{operands}_g{self.groups}_m{self.m}_n{self.n}_k{self.k}"
        text += "_minlatency" * bool(self.min_latency)
        return text if self.numerics is None else f"{text}_{self.numerics}"

    @property
    def kind(self) -> tuple[object, ...]:
        """
        Sort key of problems: layout, types, bias, matrix, groups, rows, `min_latency`, `numerics`.
        """
        types = (self.a_dtype, self.operands.b_dtype)
        kind = (self.layout, *types, self.scale_granularity, self.out_dtype)
        more = (self.a_scale_granularity or "", self.b_layout, self.bias)
        asked = (bool(self.min_latency), self.numerics or "")
        return (*kind, *more, self.n, self.k, self.groups, self.m, *asked)


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> Any:
        return renamed(__name__, name)
