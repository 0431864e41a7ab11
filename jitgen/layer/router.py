# SPDX-License-Identifier: Apache-2.0
"""The description of a router without its weights: how experts are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from jitgen.config.config import DType
from jitgen.config.route import GroupScoring, RouteProblem, Scoring
from jitgen.support.frozen import frozen


@frozen
class RouterConfig:
    """
    How a layer chooses experts: the arguments of `jitgen.route` that follow from a model.

    Attributes:
        experts: Number of experts of the whole layer, including those without weights, which come
            last.
        top_k: Experts of a token.
        scoring: How scores are computed from logits.
        has_bias: Whether the model has a correction bias, which `jitgen.route` then needs.
        is_hashed: Whether the layer has a table with the experts of each token id, which
            `jitgen.route` then needs as `hash_table`.
        expert_groups: Number of groups of experts.
        top_groups: Number of groups from which a token may choose experts.
        group_scoring: The score of a group: ``top2`` or ``max``.
        softcap: A bound of the logits; None: no bound.
        renormalize: Divide a token's weights by their sum.
        routed_scaling_factor: Factor of the weights.

    Raises:
        InputError: A value is not allowed by `jitgen.route`.

    Example::

        router = jitgen.RouterConfig.from_config("DeepSeek-V3/config.json")
        routing = jitgen.route(logits, correction_bias=bias, **router.arguments)
    """

    experts: int
    top_k: int
    scoring: str = "softmax"
    has_bias: bool = False
    is_hashed: bool = False
    expert_groups: int = 1
    top_groups: int = 1
    group_scoring: str = "top2"
    softcap: float | None = None
    renormalize: bool = True
    routed_scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        from jitgen.ops.route import validate

        validate.scoring_of(self.scoring)
        experts = validate.number("experts", self.experts, 1)
        validate.check_choice(self, experts, validate.number("top_k", self.top_k, 1))
        validate.require_choice("experts", experts)

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, Any], layer: int | None = None) -> Self:
        """
        Read a model's config.

        Args:
            config: A mapping, or the path of a ``config.json`` or its folder.
            layer: Number of the layer; None: a layer that chooses experts by scores.

        Raises:
            InputError: The config has an entry that `jitgen.route` does not support, or lacks one.
            OSError: The file cannot be read.
        """
        from jitgen.layer.checkpoints import blank, model_config, routers

        if layer is not None:
            model_config.require_number(layer)
        said = blank.require_config(model_config.said(config, None, ""))
        return cls(**routers.fields(said, layer))

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `jitgen.route`; the caller adds a bias and a table."""
        return {
            "top_k": self.top_k,
            "scoring": self.scoring,
            "expert_groups": self.expert_groups,
            "top_groups": self.top_groups,
            "group_scoring": self.group_scoring,
            "softcap": self.softcap,
            "renormalize": self.renormalize,
            "routed_scaling_factor": self.routed_scaling_factor,
        }

    def problem(self, dtype: DType, local_experts: int) -> RouteProblem:
        """Return the problem of `jitgen.route` with one token and logits of a type."""
        return RouteProblem(
            m=1,
            experts=self.experts,
            top_k=self.top_k,
            scoring=Scoring(self.scoring),
            scores_dtype=dtype,
            bias=self.has_bias,
            expert_groups=self.expert_groups,
            group_scoring=GroupScoring(self.group_scoring),
            softcap=self.softcap is not None,
            hashed=self.is_hashed,
            local_experts=local_experts,
        )
