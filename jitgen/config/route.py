# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `route`. The config is what changes a kernel's source (how scores are made,
types, the most experts, how work is shared); the problem is the sizes of one call, for which a
config is chosen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from jitgen.config.config import MAX_SIZE, DType, Part, TiledConfig, of
from jitgen.config.problem import UngroupedTokens
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen


class Scoring(StrEnum):
    """Function that turns a token's logits into scores."""

    SOFTMAX = "softmax"
    """exp(x - max) over its sum: Mixtral, Qwen3, gpt-oss."""

    SIGMOID = "sigmoid"
    """1 / (1 + exp(-x)): DeepSeek-V3."""

    SQRTSOFTPLUS = "sqrtsoftplus"
    """sqrt(log(1 + exp(x))): DeepSeek-V4."""

    IDENTITY = "identity"
    """x: the logits themselves are the scores."""

    GIVEN = "given"
    """No scoring: the experts of each token are given, and only sorted."""


class GroupScoring(StrEnum):
    """The score of a group of experts."""

    TOP2 = "top2"
    """The sum of its two best scores, with the bias: DeepSeek-V3."""

    MAX = "max"
    """The best score of the group, with the bias: DeepSeek-V2."""


COMPUTED = tuple(each for each in Scoring if each is not Scoring.GIVEN)
"""Functions that scores are computed with."""

SCORES = (DType.BF16, DType.F16, DType.F32)
"""Element types of logits."""

MOST_TOP_K = 32
"""Experts of a token: a lane of its warp writes one."""

MOST_EXPERTS = 1024
"""
Most experts of a kernel: a lane has 32 scores of each token. If experts are given, most experts of
one device.
"""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A warp chooses the experts of one token at a time. A cluster of CTAs counts the chosen experts
    in its shared memory and sorts the pairs.

    Attributes:
        threads: Threads of a CTA; at least one for each expert, for 1,024 experts 256.
        cluster: CTAs that count together.
        is_spread: Clusters on all SMs choose, and a second launch sorts; otherwise one cluster does
            both.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch), and let the
            next one start.
    """

    threads: int = of(int, default=1024, word="t")
    cluster: int = of(int, default=8, word="c")
    is_spread: bool = of(bool, default=False, word="spread")
    use_pdl: bool = of(bool, default=False, word="pdl")

    def counts(self, num_sms: int) -> int:
        """Return the rows of a workspace, one for each cluster; 0 where there is none."""
        return max(1, num_sms // self.cluster) if self.is_spread else 0


@frozen
class RouteConfig(TiledConfig):
    """
    One kernel of `route`, before its target is known.

    Attributes:
        scoring: Function that turns logits into scores.
        scores_dtype: Element type of the logits, one of `SCORES`; None where experts are given.
        bias: Whether a bias is added to scores for choosing.
        grouped: Whether experts are in groups, of which the best are kept.
        group_scoring: How groups are scored.
        softcap: Whether logits are bounded by tanh.
        hashed: Whether a table gives the experts of each token id.
        load: Whether pairs are counted for each expert.
        experts: The most experts that it supports; if experts are given, the most local ones.
        tiling: How a GPU's threads share the work.

    Example::

        config = RouteConfig(scoring="sigmoid", scores_dtype="f32", bias=True, grouped=True)
        config.name("sm_90a")
        # 'route_sigmoid_f32_e256_bias_grouped_sm_90a'
    """

    op: ClassVar[str] = "route"
    scoring: Scoring = of(Scoring)
    scores_dtype: DType | None = of(DType, is_optional=True, default=None, reads="bf16|f16|f32")
    bias: bool = of(bool, default=False, word="bias")
    grouped: bool = of(bool, default=False, word="grouped")
    group_scoring: GroupScoring = of(GroupScoring, default=GroupScoring.TOP2, always=False)
    softcap: bool = of(bool, default=False, word="softcap")
    hashed: bool = of(bool, default=False, word="hashed")
    load: bool = of(bool, default=False, word="load")
    experts: int = of(int, default=256, word="e", always=True, after="scores_dtype")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        text = f"up to {self.experts} experts, {tiling.cluster} x {tiling.threads} threads"
        return text + " on all SMs" * tiling.is_spread

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        workspace = ("workspace",) if self.tiling.is_spread else ()
        load = ("load",) if self.load else ()
        sorted_ = ("offs", "permutation", "inverse", *load, *workspace)
        if self.scoring is Scoring.GIVEN:
            return ("ids", *sorted_)
        table = ("token_ids", "hash_table") if self.hashed else ()
        bias = ("bias",) if self.bias else ()
        return ("scores", *table, *bias, "topk_weights", "topk_ids", *sorted_)


@frozen
class RouteProblem(UngroupedTokens):
    """
    One call of `route` or `sort_pairs`.

    Attributes:
        m: Tokens.
        experts: Experts that a token may go to; those of other devices too.
        top_k: Experts of a token.
        scoring: Function that turns logits into scores.
        scores_dtype: Element type of the logits; None where experts are given.
        bias: Whether a bias is added to scores for choosing.
        expert_groups: Number of equal groups of experts.
        group_scoring: How groups are scored.
        softcap: Whether logits are bounded by tanh.
        hashed: Whether a table gives the experts of each token id.
        load: Whether pairs are counted for each expert.
        local_experts: Experts that pairs are sorted by; None: all.
    """

    op: ClassVar[str] = "route"
    m: int = of(int, least=0, most=MAX_SIZE)
    experts: int = of(int, most=MAX_SIZE)
    top_k: int = of(int, most=MAX_SIZE)
    scoring: Scoring = of(Scoring, default=Scoring.SOFTMAX)
    scores_dtype: DType | None = of(DType, is_optional=True, default=DType.BF16)
    bias: bool = of(bool, default=False)
    expert_groups: int = of(int, default=1, most=MAX_SIZE)
    group_scoring: GroupScoring = of(GroupScoring, default=GroupScoring.TOP2)
    softcap: bool = of(bool, default=False)
    hashed: bool = of(bool, default=False)
    load: bool = of(bool, default=False)
    local_experts: int | None = of(int, is_optional=True, default=None, most=MAX_SIZE)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        is_chosen = self.bias or self.expert_groups > 1
        is_more = self.softcap or self.hashed or self.load
        if self.scoring is Scoring.GIVEN and (is_chosen or is_more):
            raise ConfigError(
                "bias, expert_groups, softcap, hashed and load are for choosing: leave them out "
                "for given"
            )
        if self.hashed and is_chosen:
            raise ConfigError("bias and expert_groups are for choosing: leave them out for hashed")
        if self.expert_groups == 1:
            object.__setattr__(self, "group_scoring", GroupScoring.TOP2)
        if self.scoring is Scoring.GIVEN:
            object.__setattr__(self, "scores_dtype", None)
        elif self.scores_dtype not in SCORES:
            allowed = ", ".join(SCORES)
            raise ConfigError(f"scores_dtype must be one of {allowed} (got {self.scores_dtype})")
        if self.experts % self.expert_groups:
            raise ConfigError(
                f"experts must be a multiple of expert_groups (got {self.experts} in "
                f"{self.expert_groups})"
            )
        if self.scoring is not Scoring.GIVEN and self.top_k > self.experts:
            raise ConfigError(f"top_k must be at most experts, {self.experts} (got {self.top_k})")

    @property
    def sorted_experts(self) -> int:
        """Number of experts that pairs are sorted by."""
        return self.experts if self.local_experts is None else self.local_experts

    @property
    def traffic_bytes(self) -> int:
        """Bytes of logits and results, each once."""
        each = 0 if self.scores_dtype is None else self.scores_dtype.bits // 8 * self.experts
        return self.m * (each + 4 * 4 * self.top_k) + 4 * self.sorted_experts

    @property
    def types(self) -> str:
        """Description of the types, for errors."""
        return f"{self.scoring} of {self.scores_dtype or 'experts'}"

    @property
    def slug(self) -> str:
        """A readable name that is valid as a file name."""
        words = [str(self.scoring), *([str(self.scores_dtype)] if self.scores_dtype else [])]
        words += ["bias"] * self.bias
        words += [f"g{self.expert_groups}"] * (self.expert_groups > 1)
        words += ["max"] * (self.group_scoring is GroupScoring.MAX)
        words += ["softcap"] * self.softcap + ["hashed"] * self.hashed
        words += ["load"] * self.load
        local = [] if self.local_experts is None else [f"l{self.local_experts}"]
        sizes = [f"m{self.m}", f"e{self.experts}", f"k{self.top_k}", *local]
        return "_".join([*words, *sizes])

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: how experts are chosen, experts, places, local experts, tokens."""
        kind = (self.scoring, str(self.scores_dtype), self.bias, self.expert_groups)
        words = (self.group_scoring, self.softcap, self.hashed, self.load)
        return (*kind, *words, self.experts, self.top_k, self.sorted_experts, self.m)
