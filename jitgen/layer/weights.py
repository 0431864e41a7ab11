# SPDX-License-Identifier: Apache-2.0
"""
The weights of a layer's experts, and the formats of activations that they need.

===========================  ===================================  ================================
weights                      scales                               activations
===========================  ===================================  ================================
bfloat16 (G, N, K)           none                                 bfloat16
float8_e4m3fn (G, N, K)      (G, ceil(N / 128), ceil(K / 128))    e4m3, a scale for each 1x128
float8_e4m3fn (G, N, K)      (G, N)                               e4m3, a scale for each row
PrepackedWeights, wide1      in them                              bfloat16
PrepackedWeights, others     in them                              e4m3, for each 1x128, or each row
===========================  ===================================  ================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.config import BLayout
from jitgen.errors import InputError
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.protocol import ceil_div
from jitgen.ops import tensors as common
from jitgen.ops.dispatcher import is_traced
from jitgen.support.frozen import frozen
from jitgen.support.moved import with_old_fields

Matrices = Tensor | PrepackedWeights
"""One matrix for each expert."""

NONE, BLOCK128, ROW = "none", "block128", "row"
"""Formats of activations in chains."""

_BLOCK = 128

_BESIDE = ("w13_scale", "w2_scale", "w13_bias", "w2_bias", "group_numbers")
"""Optional tensors of the weights."""


@with_old_fields
@frozen
class ExpertWeights:
    """
    The two matrices of every expert on one rank, with scales and biases.

    Attributes:
        w13: (G, 2 I, H): gates, then ups, or alternating; (G, I, H) without gates.
        w2: (G, H, I). Both matrices have one format, which `jitgen.grouped_gemm` takes as b: see
            the table above.
        w13_scale: Scales of `w13`; None if it has no scales, or contains them.
        w2_scale: Likewise.
        w13_bias: (G, 2 I) float32, without gates (G, I), added to the first product; None: no bias.
        w2_bias: (G, H) float32, added to the second product; None: no bias.
        group_numbers: (G, n) float32, the numbers of each expert's activation, as for
            `jitgen.activation_quantize`; None: all experts have the numbers of the config.
        activation_format: Format to which tokens are quantised: ``none``, ``block128`` or ``row``;
            None: the format that the weights need, ``block128`` if two are possible.

    Raises:
        InputError: The tensors do not fit each other; the message says which.
    """

    w13: Matrices
    w2: Matrices
    w13_scale: Tensor | None = None
    w2_scale: Tensor | None = None
    w13_bias: Tensor | None = None
    w2_bias: Tensor | None = None
    activation_format: str | None = None
    group_numbers: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("w13", "w2"):
            _require_matrices(name, getattr(self, name), getattr(self, f"{name}_scale"))
        (groups, rows, hidden), (groups2, hidden2, inner) = _shape(self.w13), _shape(self.w2)
        if (groups2, hidden2) != (groups, hidden) or rows not in (2 * inner, inner):
            raise InputError(
                "w2",
                f"must be (G, H, I) = {(groups, hidden, rows // 2)}, as w13 is (G, 2 I, H) = "
                f"{(groups, rows, hidden)}, or have I = {rows} without gates (got "
                f"{(groups2, hidden2, inner)})",
            )
        allowed = _activations("w13", self.w13, self.w13_scale)
        others = _activations("w2", self.w2, self.w2_scale)
        if others != allowed:
            raise InputError(
                "w2",
                f"must be of w13's format, whose activations are {' or '.join(allowed)} (got one "
                f"for {' or '.join(others)})",
            )
        if self.activation_format is None:
            object.__setattr__(self, "activation_format", allowed[0])
        if self.activation_format not in allowed:
            raise InputError(
                "activation_format",
                f"must be {' or '.join(allowed)} for these weights (got "
                f"{self.activation_format!r})",
            )
        for name, columns in (("w13_bias", rows), ("w2_bias", hidden)):
            bias = getattr(self, name)
            if bias is not None:
                common.require(
                    name,
                    bias,
                    [torch.float32],
                    shape=((groups, columns), "a number for each column"),
                )
        if self.group_numbers is not None:
            name, numbers = "group_numbers", self.group_numbers
            common.require(name, numbers, [torch.float32], rank=(2, "(G, n)"))
            shape = (groups, numbers.shape[1]), "the numbers of each expert"
            common.require(name, numbers, shape=shape)
        for name, tensor in self.tensors.items():
            common.require(name, tensor, like=("w13", self.tensors["w13"].device))

    @property
    def groups(self) -> int:
        """Number of experts, G."""
        return _shape(self.w13)[0]

    @property
    def hidden(self) -> int:
        """Columns of a token, H."""
        return _shape(self.w13)[2]

    @property
    def intermediate(self) -> int:
        """Columns between the two products, I."""
        return _shape(self.w2)[2]

    @property
    def is_gated(self) -> bool:
        """Whether `w13` has gates beside ups: 2 I rows."""
        return _shape(self.w13)[1] == 2 * self.intermediate

    @property
    def between(self) -> int:
        """Columns of the first product's result: 2 I, or I without gates."""
        return _shape(self.w13)[1]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.w13.device

    @property
    def is_quantised(self) -> bool:
        """Whether a matrix is not bfloat16; then there are no gradients."""
        is_plain = isinstance(self.w13, Tensor) and isinstance(self.w2, Tensor)
        return not is_plain or self.activation_format != NONE

    @property
    def a_dtype(self) -> torch.dtype:
        """Element type of the activations in the products."""
        return torch.bfloat16 if self.activation_format == NONE else torch.float8_e4m3fn

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, by its name in the state of a module."""
        found: dict[str, Tensor] = {}
        for name in ("w13", "w2"):
            each = getattr(self, name)
            if isinstance(each, PrepackedWeights):
                found |= {name: each.values, f"{name}_factor": each.factor}
            else:
                found[name] = each
        for name in _BESIDE:
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return found

    def of(self, tensors: dict[str, Tensor]) -> ExpertWeights:
        """
        Return weights with the same properties and other tensors, given by the names of this
        object's tensors; they may have only some of the experts.
        """
        return self._with(tensors, lambda each, made: replace(made, row_spread=each.known_spread))

    def replaced(self, tensors: dict[str, Tensor]) -> ExpertWeights:
        """
        Return weights with other values, given as `tensors` by the names of this object's tensors.

        If the `row_spread` of prepacked weights was known, that of the new values is computed,
        which waits for the device. If values cannot be read now (on ``meta``, in a trace, while a
        CUDA graph is captured), it is unknown.
        """
        return self._with(tensors, _looked_at)

    def _with(
        self,
        tensors: dict[str, Tensor],
        known: Callable[[PrepackedWeights, PrepackedWeights], PrepackedWeights],
    ) -> ExpertWeights:
        fields: dict[str, Any] = {"activation_format": self.activation_format}
        for name in ("w13", "w2"):
            each = getattr(self, name)
            fields[name] = tensors[name]
            if isinstance(each, PrepackedWeights):
                factor = tensors[f"{name}_factor"]
                try:
                    made = replace(each, values=tensors[name], factor=factor, row_spread=None)
                except InputError as error:
                    raise InputError(name, f"its {error}") from None
                fields[name] = known(each, made)
        for name in _BESIDE:
            fields[name] = tensors.get(name)
        return ExpertWeights(**fields)


def require_trained(weights: ExpertWeights) -> None:
    """
    Require weights that have gradients: bfloat16.

    Raises:
        InputError: The weights are quantised.
    """
    if weights.is_quantised:
        raise InputError(
            "weights",
            "must be bfloat16 where gradients are needed: quantised experts have none; train with "
            "bfloat16 weights and quantise them for inference",
        )


def _looked_at(before: PrepackedWeights, made: PrepackedWeights) -> PrepackedWeights:
    """
    Return the weights `made`, which replace `before`, with their `row_spread`: that of `before` if
    the values are the same, else computed if it was known before and the values can be read now.
    """
    if made.values is before.values and before.known_spread is not None:
        return replace(made, row_spread=before.known_spread)
    is_asked = before.row_spread is not None and _can_be_seen(made.values)
    return made.with_row_spread() if is_asked else made


def _can_be_seen(values: Tensor) -> bool:
    """
    Return whether values can be read now: not in a trace, on ``meta``, or during a graph capture.
    """
    if is_compiling() or values.is_meta or is_traced((values,)):
        return False
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def _shape(each: Matrices) -> tuple[int, int, int]:
    """Return G, N and K of matrices."""
    if isinstance(each, PrepackedWeights):
        return each.groups, each.n, each.k
    groups, n, k = each.shape
    return groups, n, k


def _activations(name: str, each: Matrices, scale: Tensor | None) -> tuple[str, ...]:
    """
    Return the formats of activations that can be multiplied by these matrices, the default first.
    """
    if isinstance(each, PrepackedWeights):
        return (NONE,) if each.layout is BLayout.WIDE1 else (BLOCK128, ROW)
    if scale is None:
        return (NONE,)
    groups, n, k = each.shape
    shapes = {BLOCK128: (groups, ceil_div(n, _BLOCK), ceil_div(k, _BLOCK)), ROW: (groups, n)}
    for granularity, shape in shapes.items():
        if tuple(scale.shape) == shape:
            return (granularity,)
    raise InputError(
        f"{name}_scale",
        f"must have shape {shapes[BLOCK128]} for blocks of 128 x 128, or {shapes[ROW]} for rows "
        f"(got {tuple(scale.shape)})",
    )


def _require_matrices(name: str, each: Any, scale: Any) -> None:
    """Require weights of a format that chains support, and scales if the format needs them."""
    if isinstance(each, PrepackedWeights):
        if scale is not None:
            raise InputError(f"{name}_scale", "must be left out: prepacked weights have it in them")
        return
    common.require(name, each, rank=(3, "(G, N, K)"))
    common.require(name, each, [torch.bfloat16, torch.float8_e4m3fn])
    if each.dtype is torch.bfloat16:
        if scale is not None:
            raise InputError(f"{name}_scale", "must be left out: bfloat16 weights have none")
        return
    if scale is None:
        raise InputError(
            f"{name}_scale", "is required: float8_e4m3fn weights have scales (got None)"
        )
    common.require(f"{name}_scale", scale, [torch.float32])
