# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `activation_quantize`. The config is what changes a kernel's source (layout,
scales, activation, how work is shared); the problem is the sizes of one call, for which a config is
chosen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from jitgen.config.config import MAX_SIZE, SCALE_BLOCK, Layout, Part, TiledConfig, of
from jitgen.config.format import IN_ROWS, Format
from jitgen.config.problem import GroupedRows
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.moved import renamed


class Activation(StrEnum):
    """
    Activation of a gate and an up, or of a value x without a gate, with ``silu(x) = x / (1 +
    exp(-x))``.

    LIMIT, ALPHA and BETA are the numbers `swiglu_limit`, `swiglu_alpha` and `swiglu_beta` of a
    call. A limited gate is at most LIMIT; a limited up is between -LIMIT and LIMIT.
    """

    SWIGLU = "swiglu"
    """gate / (1 + exp(-gate)) * up"""

    SWIGLU_OAI = "swiglu_oai"
    """gpt-oss's: gate / (1 + exp(-ALPHA gate)) * (up + 1), with both limited before."""

    SWIGLU_CLAMP = "swiglu_clamp"
    """
    silu(gate) * up, with both limited before; of DeepSeek-V4, GLM-5-next, Hunyuan-4
    (transformers' ``DeepseekV4Experts``; vLLM's ``SiluAndMulWithClamp``).
    """

    SWIGLU_BIAS = "swiglu_bias"
    """
    gate / (1 + exp(-ALPHA gate)) * (up + BETA), with both limited before: FlashInfer's and
    TensorRT-LLM's ``SwigluBias``, of which `SWIGLU_OAI` has BETA 1.
    """

    SWIGLU_STEP = "swiglu_step"
    """
    min(silu(gate), LIMIT) * up, with up limited; of Step-3.5 and 3.7
    (transformers' ``Step3p7Experts``; vLLM's ``SwigluStepAndMul``).
    """

    SITU = "situ"
    """
    softcap(gate) / (1 + exp(-gate)) * softcap(up) with ``softcap(x) = CAP tanh(x / CAP)``, of
    gates `gate_softcap` and of ups `up_softcap`; of Kimi-K3 with 4 and 25 (its ``SituAndMul``) and
    Inkling-2 (transformers' ``Inkling2SoftcappedSwiGLU``).
    """

    GEGLU = "geglu"
    """gate * F(gate) * up with the normal distribution F: torch's gelu(gate) * up."""

    GEGLU_TANH = "geglu_tanh"
    """
    gate * (1 + tanh(u)) / 2 * up, u = sqrt(2 / pi) (gate + 0.044715 gate**3): torch's
    gelu(gate, approximate="tanh") * up; of Gemma-4.
    """

    RELU2 = "relu2"
    """Without a gate: max(x, 0)**2; of Nemotron-3 (transformers' ``NemotronHExperts``)."""

    RELU = "relu"
    """Without a gate: max(x, 0)."""

    SILU = "silu"
    """Without a gate: silu(x)."""

    GELU = "gelu"
    """Without a gate: x F(x), torch's gelu(x)."""

    GELU_TANH = "gelu_tanh"
    """Without a gate: torch's gelu(x, approximate="tanh")."""

    IDENTITY = "identity"
    """Without a gate: x."""

    @property
    def is_gated(self) -> bool:
        """Whether each result is made of a gate and an up, so that x has twice its columns."""
        return self not in _UNGATED

    @property
    def inputs(self) -> int:
        """Columns of x for each column of the result."""
        return 2 if self.is_gated else 1

    @property
    def numbers(self) -> tuple[str, ...]:
        """
        Names of the numbers of a call that the formula has, in the order in which kernels take
        them.
        """
        return _NUMBERS.get(self, ())


_UNGATED = frozenset(
    {
        *(Activation.RELU2, Activation.RELU, Activation.SILU),
        *(Activation.GELU, Activation.GELU_TANH, Activation.IDENTITY),
    }
)

_NUMBERS: dict[Activation, tuple[str, ...]] = {
    Activation.SWIGLU_OAI: ("swiglu_limit", "swiglu_alpha"),
    Activation.SWIGLU_CLAMP: ("swiglu_limit",),
    Activation.SWIGLU_BIAS: ("swiglu_limit", "swiglu_alpha", "swiglu_beta"),
    Activation.SWIGLU_STEP: ("swiglu_limit",),
    Activation.SITU: ("gate_softcap", "up_softcap"),
}

NUMBERS = tuple(dict.fromkeys(name for names in _NUMBERS.values() for name in names))
"""Every number that some activation has, by the name of the argument."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A thread processes 8 columns at a time. If a warp can compute a scale, a tile is `rows` x 256
    columns, and each warp has its own tiles; for scales of rows, a CTA has `rows` whole rows.

    Attributes:
        rows: Rows of a tile; their loads are in flight at the same time.
        threads: Threads of a CTA.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        held: Vectors of 8 columns that a thread keeps until the scale of their row is known; for
            scales of rows alone.
        loads_ahead: Load a tile before the previous one is computed.
        is_persistent: Whether the launch has as many CTAs as fit on the GPU, which loop over all
            tiles; otherwise it has one CTA for every few tiles.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    rows: int = of(int, default=4, word="r")
    threads: int = of(int, default=128, word="t")
    ctas_per_sm: int = of(int, default=7, word="c")
    held: int = of(int, default=1, word="held")
    loads_ahead: bool = of(bool, default=False, word="ahead")
    is_persistent: bool = of(bool, default=True, word="once")
    use_pdl: bool = of(bool, default=False, word="pdl")


@frozen
class ActivationQuantizeConfig(TiledConfig):
    """
    One kernel of `activation_quantize`, before its target is known.

    Attributes:
        layout: How rows belong to groups.
        scale_granularity: How many results share one scale.
        activation: Function of a gate and an up, or of a value without a gate.
        interleaved: Whether gates and ups alternate; otherwise all gates come first.
        power_of_two: Whether scales are rounded up to powers of two.
        per_group: Whether every group has its own numbers of the activation.
        tiling: How a GPU's threads share the work.

    Example::

        config = ActivationQuantizeConfig(layout="ragged", tiling=Tiling(rows=2, ctas_per_sm=9))
        config.name("sm_90a")
        # 'activation_quantize_ragged_block128_swiglu_r2_c9_sm_90a'
    """

    op: ClassVar[str] = "activation_quantize"
    layout: Layout = of(Layout)
    scale_granularity: Format = of(Format, allowed=IN_ROWS, default=Format.BLOCK128)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False, word="interleaved")
    power_of_two: bool = of(bool, default=False, word="pow2")
    per_group: bool = of(bool, default=False, word="pergroup")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        text = f"{tiling.rows} rows, {tiling.threads} threads x {tiling.ctas_per_sm}"
        return text + " once" * (not tiling.is_persistent)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        given = {Format.TENSOR: ("given",), Format.NONE: ()}
        scales = given.get(self.scale_granularity, ("scale",))
        return ("x", "groups", "q", *scales, *(["numbers"] if self.per_group else []))


@frozen
class ActivationQuantizeProblem(GroupedRows):
    """
    One call of `activation_quantize`: (rows, 2 n) to (rows, n), or (rows, n) without gates.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups; 1 for the contiguous layout, whose calls do not know the number,
            so all rows count as one group.
        m: Total rows; for the masked layout, the expected number of valid rows in all groups.
        n: Columns of the result, I: half of those of x if there are gates.
        scale_granularity: How many results share one scale.
        activation: Function of a gate and an up, or of a value without a gate.
        interleaved: Whether gates and ups alternate.
        power_of_two: Whether scales are powers of two.
        per_group: Whether every group has its own numbers of the activation.
    """

    op: ClassVar[str] = "activation_quantize"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    scale_granularity: Format = of(Format, allowed=IN_ROWS, default=Format.BLOCK128)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False)
    power_of_two: bool = of(bool, default=False)
    per_group: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.layout is Layout.CONTIGUOUS and self.groups != 1:
            raise ConfigError(
                "groups must be 1 for contiguous rows, because a call does not know of more: count "
                f"all rows as one group's (got {self.groups})"
            )

    @property
    def traffic_bytes(self) -> int:
        """Bytes of x, results and scales, each once."""
        scales = {Format.BLOCK128: 4 * -(-self.n // SCALE_BLOCK), Format.ROW: 4}
        each = (
            2 * self.activation.inputs * self.n + self.n * self.scale_granularity.q_dtype.bits // 8
        )
        return self.m * (each + scales.get(self.scale_granularity, 0))

    @property
    def types(self) -> str:
        """Description of the types, for errors."""
        granularity = self.scale_granularity
        return f"{self.activation} of bf16 -> {granularity.q_dtype} with {granularity} scales"

    @property
    def slug(self) -> str:
        """A readable name that is valid as a file name."""
        words = [str(self.layout), str(self.scale_granularity), str(self.activation)]
        words += ["interleaved"] * self.interleaved + ["pow2"] * self.power_of_two
        words += ["pergroup"] * self.per_group
        return f"{'_'.join(words)}_g{self.groups}_m{self.m}_n{self.n}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: layout, scales, activation, flags, columns, groups, rows."""
        kind = (self.layout, self.scale_granularity, self.activation, self.interleaved)
        return (*kind, self.power_of_two, self.per_group, self.n, self.groups, self.m)


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
