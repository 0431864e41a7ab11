# SPDX-License-Identifier: Apache-2.0
"""
The description of a layer of experts without its weights: sizes, activation, the share of a rank.
"""

from __future__ import annotations

from typing import Any

from jitgen.config.activation_quantize import NUMBERS, Activation
from jitgen.errors import InputError
from jitgen.ops.activation_quantize.numbers import require_numbers
from jitgen.ops.route.validate import require_few, require_room
from jitgen.selection.numerics import require_word
from jitgen.support.frozen import frozen
from jitgen.support.moved import with_old_fields

CHUNK_TOKENS = 16384
"""
Tokens of one pass through the chain. With the sizes of DeepSeek-V3, the memory between launches is
2.9 GB.
"""


@with_old_fields
@frozen
class MoEConfig:
    """
    A layer of experts.

    Attributes:
        hidden: Columns of a token, H.
        intermediate: Columns between the two GEMMs, I.
        experts: Experts of the whole layer, on all ranks.
        top_k: Experts of a token; at most 32.
        activation: An activation of `jitgen.activation_quantize`; its numbers are the fields below.
        interleaved: Whether rows of w13 alternate between gates and ups; otherwise all gates come
            first.
        swiglu_limit: See `jitgen.activation_quantize`.
        swiglu_alpha: Likewise.
        swiglu_beta: Likewise.
        gate_softcap: Likewise.
        up_softcap: Likewise.
        first_expert: The first expert whose weights are on this rank.
        local_experts: Number of experts on this rank, at most 1,024; None: all from `first_expert`
            on.
        zero_experts: Number of further experts without weights, numbered from `experts` on, which
            return the token itself. The rank with expert 0 adds them.
        chunk_tokens: Most tokens of one pass through the chain; calls with more make several
            passes.
        min_latency: As for `jitgen.grouped_gemm`.
        numerics: As for `jitgen.moe`.
        per_group: Whether every expert has its own numbers of the activation, `group_numbers` of
            the weights, instead of the fields above.

    Raises:
        InputError: A value is not allowed.
    """

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    activation: str = "swiglu"
    interleaved: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    swiglu_beta: float | None = None
    gate_softcap: float | None = None
    up_softcap: float | None = None
    first_expert: int = 0
    local_experts: int | None = None
    chunk_tokens: int = CHUNK_TOKENS
    min_latency: bool | None = None
    numerics: str | None = None
    zero_experts: int = 0
    per_group: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate", "experts", "top_k", "chunk_tokens"):
            require_count(name, getattr(self, name), least=1)
        require_count("zero_experts", self.zero_experts, least=0)
        if self.top_k > self.every:
            raise InputError("top_k", f"must be at most experts, {self.every} (got {self.top_k})")
        require_few("top_k", self.top_k)
        require_count("first_expert", self.first_expert, least=0)
        if self.first_expert >= self.experts:
            raise InputError(
                "first_expert",
                f"must be one of the {self.experts} experts, from 0 on (got {self.first_expert})",
            )
        said = "local_experts"
        if self.local_experts is None:
            said = "experts"
            object.__setattr__(self, "local_experts", self.experts - self.first_expert)
        require_count("local_experts", self.local_experts, least=1)
        if self.first_expert + self.groups > self.experts:
            raise InputError(
                "local_experts",
                f"must end at the last of {self.experts} experts, or before (got "
                f"{self.local_experts} from {self.first_expert} on)",
            )
        require_room(said, self.groups)
        self._check_activation()
        if self.numerics is not None:
            require_word(self.numerics)

    def _check_activation(self) -> None:
        if self.activation not in tuple(Activation):
            raise InputError(
                "activation", f"must be one of {', '.join(Activation)} (got {self.activation!r})"
            )
        if type(self.per_group) is not bool:
            raise InputError("per_group", f"must be True or False (got {self.per_group!r})")
        require_numbers(Activation(self.activation), self._numbers, per_group=self.per_group)
        if self.interleaved is True and not self.is_gated:
            raise InputError("interleaved", f"must be False for {self.activation}, without gates")
        for name, allowed in (("interleaved", (False, True)), ("min_latency", (None, False, True))):
            value = getattr(self, name)
            if not any(value is each for each in allowed):
                names = " or ".join(map(str, allowed))
                raise InputError(name, f"must be {names} (got {value!r})")

    @property
    def groups(self) -> int:
        """Number of experts of this rank, which are the groups of the GEMMs."""
        return int(self.local_experts or 0)

    @property
    def every(self) -> int:
        """Number of experts that a token may have, including those without weights."""
        return self.experts + self.zero_experts

    @property
    def is_whole(self) -> bool:
        """
        Whether this rank has all experts, so that it computes every pair of a token and an expert.
        """
        return self.groups == self.every

    @property
    def adds_tokens(self) -> bool:
        """Whether this rank adds the results of experts without weights."""
        return self.zero_experts > 0 and self.first_expert == 0

    def expected_rows(self, tokens: int) -> int | None:
        """Return the expected mean rows of a group; None if the rows of the call imply it."""
        return None if self.is_whole else max(1, -(-tokens * self.top_k // self.every))

    @property
    def is_gated(self) -> bool:
        """Whether w13 has gates beside ups."""
        return Activation(self.activation).is_gated

    @property
    def gate(self) -> dict[str, Any]:
        """Arguments of `jitgen.activation_quantize` that describe the activation."""
        return {
            "activation": str(self.activation),
            "interleaved": self.interleaved,
            **self._numbers,
        }

    @property
    def _numbers(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in NUMBERS}


def require_count(name: str, value: object, *, least: int) -> None:
    """Raise InputError unless an argument is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise InputError(name, f"must be an integer of at least {least} (got {value!r})")
