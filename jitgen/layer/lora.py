# SPDX-License-Identifier: Apache-2.0
"""
Low-rank adapters (LoRA) of a layer's experts: several adapters, of which each token uses one or
none.

    h = w13[e] . x + scales[l] * w13_b[l, e] . (w13_a[l, e] . x)
    y = w2[e] . act(h) + scales[l] * w2_b[l, e] . (w2_a[l, e] . act(h))

Each line is one more launch, `add_lora`, after the product with the weights, whose kernel is the
same with and without adapters. Weights may be quantised: the adapters multiply the token, and the
activation, before their quantisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.config import Layout
from jitgen.config.activation_quantize import Activation, ActivationQuantizeProblem
from jitgen.config.add_lora import AddLoraProblem
from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights
from jitgen.ops import tensors as common
from jitgen.ops.add_lora.call import add_lora
from jitgen.ops.add_lora.validate import check_matrices
from jitgen.ops.route.results import Sorting
from jitgen.support.frozen import frozen


@frozen
class ExpertLora:
    """
    The adapters of every expert on this rank of the group; all adapters have the same rank of their
    matrices.

    A server keeps one object with as many adapters as a batch may have, and writes other adapters
    into the tensors in place. Pad adapters of a smaller rank with zeros.

    Attributes:
        w13_a: (L, G, rank, H) bfloat16: L adapters for G experts; or (L, G, 2 rank, H), if gates
            and ups have separate adapters, with the rows of the gates first. None: no adapters for
            w13.
        w13_b: (L, G, 2 I, rank) bfloat16, rows as in w13; (L, G, I, rank) without gates.
        w2_a: (L, G, rank, I) bfloat16. None: no adapters for w2.
        w2_b: (L, G, H, rank) bfloat16.
        scales: (L,) float32, the factor of each adapter, such as alpha / rank; None: 1.

    Raises:
        InputError: The tensors do not fit each other; the message says which.
    """

    w13_a: Tensor | None = None
    w13_b: Tensor | None = None
    w2_a: Tensor | None = None
    w2_b: Tensor | None = None
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        made = [self._check_pair(name) for name in ("w13", "w2")]
        found = [each for each in made if each is not None]
        if not found:
            raise InputError("lora", "must have matrices for w13 or for w2 (got none)")
        first, *others = found
        if others and others[0].shape[:2] != first.shape[:2]:
            raise InputError(
                "w2_a",
                f"must be of L, G = {tuple(first.shape[:2])} adapters and experts, as w13_a is "
                f"(got {tuple(others[0].shape[:2])})",
            )
        if self.scales is None:
            ones = torch.ones(first.shape[0], dtype=torch.float32, device=first.device)
            object.__setattr__(self, "scales", ones)
        common.require(
            "scales",
            self.scales,
            [torch.float32],
            shape=((first.shape[0],), "one for each adapter"),
            contiguous=0,
        )
        for name, tensor in self.tensors.items():
            common.require(name, tensor, like=("the first matrix", first.device))

    def _check_pair(self, name: str) -> Tensor | None:
        """Return the first of two matrices that belong together; None if both are missing."""
        names = f"{name}_a", f"{name}_b"
        a, b = (getattr(self, each) for each in names)
        if a is None and b is None:
            return None
        if a is None or b is None:
            missing, there = names if a is None else names[::-1]
            raise InputError(missing, f"is required with {there} (got None)")
        for each, tensor in zip(names, (a, b), strict=True):
            common.require(each, tensor, [torch.bfloat16], rank=(4, "(L, G, ..., ...)"))
        parts, rank = check_matrices(a, b, a.shape[3], b.shape[2], names)
        if name == "w2" and parts > 1:
            raise InputError("w2_a", f"must have {rank} rows, the rank of w2_b (got {a.shape[2]})")
        return a  # type: ignore[no-any-return]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the adapters, by its name."""
        names = ("w13_a", "w13_b", "w2_a", "w2_b", "scales")
        found = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def adapters(self) -> int:
        """Number of adapters, L."""
        return len(self.tensors["scales"])

    def moved(self, fn: Callable[[Tensor], Tensor]) -> ExpertLora:
        """Return the adapters with `fn` applied to each tensor."""
        return ExpertLora(**{name: fn(tensor) for name, tensor in self.tensors.items()})


class Adapters(NamedTuple):
    """
    The adapters of a call.

    Attributes:
        lora: The adapters of the layer.
        ids: (T,) int32: the adapter of each token; -1, or any number out of range, for no adapter.
    """

    lora: ExpertLora
    ids: Tensor

    def part(self, tokens: slice) -> Adapters:
        """Return the adapters of a part of the tokens."""
        return self._replace(ids=self.ids[tokens])

    def add(
        self,
        name: str,
        y: Tensor,
        x: Tensor,
        topk_ids: Tensor,
        pairs: Sorting,
        config: MoEConfig,
        kernel: Any = None,
    ) -> Tensor:
        """
        Add the adapters of ``w13`` or ``w2`` to the rows of its product, by the selector's kernel
        or by `kernel`. This is done in place, except in a graph of torch, which plans its memory
        itself.
        """
        tensors = self.lora.tensors
        if f"{name}_a" not in tensors:
            return y
        return add_lora(
            *(y, x, tensors[f"{name}_a"], tensors[f"{name}_b"], tensors["scales"]),
            *(self.ids, topk_ids, pairs.permutation),
            first_expert=config.first_expert,
            by_row=name == "w2",
            out=None if is_compiling() else y.view(y.shape),  # no guard takes one tensor twice
            config=kernel,
        )


def adapters_of(
    lora: ExpertLora | None,
    adapter_ids: Tensor | None,
    x: Tensor,
    config: MoEConfig,
    weights: ExpertWeights,
) -> Adapters | None:
    """
    Return the adapters of a call; None if its tokens have no adapters.

    Raises:
        InputError: They do not fit the layer or the tokens, or `adapter_ids` is given without
            `lora`.
    """
    if adapter_ids is None:
        return None
    if lora is None:
        raise InputError("adapter_ids", "must be None for a layer without adapters: give lora")
    require_fit(lora, config, weights)
    common.require(
        "adapter_ids",
        adapter_ids,
        [torch.int32, torch.int64],
        shape=((x.shape[0],), "one for each token"),
        like=("x", x.device),
    )
    return Adapters(lora, common.short_ids(adapter_ids).contiguous())


def require_fit(lora: object, config: MoEConfig, weights: ExpertWeights) -> None:
    """Require adapters that have the sizes of a layer and are on its device."""
    if not isinstance(lora, ExpertLora):
        raise InputError("lora", f"must be a jitgen.ExpertLora (got {type(lora).__name__})")
    size_h, size_i, between = weights.hidden, weights.intermediate, weights.between
    for name, side, words, size in (
        ("w13_a", 3, "columns, H", size_h),
        ("w13_b", 2, "rows, those of w13", between),
        ("w2_a", 3, "columns, I", size_i),
        ("w2_b", 2, "rows, H", size_h),
    ):
        tensor = lora.tensors.get(name)
        if tensor is None:
            continue
        if (tensor.shape[1], tensor.shape[side]) != (weights.groups, size):
            raise InputError(
                f"lora.{name}",
                f"must be of {weights.groups} experts and {size} {words} (got shape "
                f"{tuple(tensor.shape)})",
            )
        common.require(f"lora.{name}", tensor, like=("w13", weights.device))
    first = lora.w13_a, lora.w13_b
    if config.interleaved and None not in first and first[0].shape[2] != first[1].shape[3]:  # type: ignore[union-attr]
        raise InputError(
            "lora.w13_a",
            "must have the rank's rows where gates and ups take turns: join both adapters into one "
            "of twice the rank, with zeros in w13_b",
        )


def problems(
    config: MoEConfig, weights: ExpertWeights, lora: ExpertLora
) -> Iterator[AddLoraProblem]:
    """Yield the problems of the launches that add adapters; each has one token."""
    tensors = lora.tensors
    for name in ("w13", "w2"):
        if f"{name}_a" not in tensors:
            continue
        a, b = tensors[f"{name}_a"], tensors[f"{name}_b"]
        yield AddLoraProblem(
            m=1,
            n=b.shape[2],
            k=a.shape[3],
            rank=b.shape[3],
            top_k=config.top_k,
            parts=a.shape[2] // b.shape[3],
            adapters=a.shape[0],
            experts=weights.groups,
            by_row=name == "w2",
        )


def needs_activation(weights: ExpertWeights, lora: ExpertLora) -> bool:
    """
    Say whether adapters need the activation before its quantisation, so that it is computed a
    second time.
    """
    return lora.w2_a is not None and weights.activation_format != NONE


def activation_problem(config: MoEConfig, weights: ExpertWeights) -> ActivationQuantizeProblem:
    """
    Return the problem of the launch that computes the unquantised activation, with one row for each
    expert.
    """
    return ActivationQuantizeProblem(
        layout=Layout.RAGGED,
        groups=weights.groups,
        m=weights.groups,
        n=weights.intermediate,
        scale_granularity=Format.NONE,
        activation=Activation(config.activation),
        interleaved=config.interleaved,
        per_group=config.per_group,
    )
