# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeConfig, PermuteQuantizeProblem, Walk
from jitgen.config.problem import Problem
from jitgen.formats.protocol import TORCH, Rows, ScaleFormat
from jitgen.ops.launch import AnyLaunch, Family, Kernel
from jitgen.ops.permute_quantize.validate import (
    Arguments,
    Validated,
    counted,
    form_of,
    format_of,
    validate,
)
from jitgen.ops.scaled import Scaled, ScaledCall
from jitgen.ops.tensors import groups_of
from jitgen.ops.values import check_places, check_values
from jitgen.support.frozen import frozen

_PAIRS = torch.float4_e2m1fn_x2
_WORD = 4
"""Scales that a kernel loads together."""


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        per_element: Values in an element of q.
        q_dtype: Element type of q as kernels take it.
        form: The format of the scales; None if the kernel computes no scales.
        num_groups: Number of ragged groups if scales lie in atoms; otherwise 0.
        is_scatter: Whether the kernel reads the inverse instead of the permutation.
        is_relayed: Whether the kernel reads the inverse and the permutation, and needs memory for
            the scales of tokens.
    """

    per_element: int
    q_dtype: torch.dtype
    form: ScaleFormat | None
    num_groups: int
    is_scatter: bool
    is_relayed: bool

    def call(  # the tensors
        self,
        x: Tensor,
        permutation: Tensor,
        top_k: int,
        groups: Tensor | None,
        inverse: Tensor | None,
        scale: Tensor | None,
        q: Tensor | None,
        found: Tensor | None,
    ) -> Scaled:
        """Launch the kernel, into `q` and `found` if they are given; return q and its scales."""
        rows, columns = permutation.shape, x.shape[-1]
        if q is None:
            q = x.new_empty((*rows, columns // self.per_element), dtype=self.q_dtype)
        written = q.view(torch.uint8) if q.dtype is _PAIRS else q
        given: list[Tensor | int | None] = [x, inverse, written]
        if not self.is_scatter:
            given = [x, permutation, groups, written]
        if self.form is not None:
            if found is None:
                found = self.form.new_a(x, Rows(tuple(rows), self.num_groups), columns)
            given.append(found)
            if scale is not None:
                given.append(scale)
            scale = found
        elif scale is not None:
            given.append(scale)
        if not self.is_scatter:
            given.append(top_k)
        elif self.is_relayed:
            given += (permutation, new_by_token(x))
        self.function(*given, *self.tail)
        return q, scale


def new_by_token(x: Tensor) -> Tensor:
    """
    Return uninitialised memory for the block scales of every token, float32; rows are multiples of
    16 bytes.
    """
    blocks = -(-x.shape[-1] // SCALE_BLOCK)
    return x.new_empty((x.shape[0], -(-blocks // _WORD) * _WORD), dtype=torch.float32)


def stored_as(form: Format) -> torch.dtype:
    """Return the element type of new results; two values of e2m1 share a byte."""
    return torch.uint8 if TORCH[form.q_dtype] is _PAIRS else TORCH[form.q_dtype]


def new_tensors(args: Arguments) -> Scaled:
    """
    Return new tensors for q and scales in the layout that the next GEMM reads, not initialised; no
    scales if the kernel computes none.
    """
    form, groups = format_of(args.format, args.q_dtype), groups_of(args)
    rows, columns = tuple(args.permutation.shape), args.x.shape[-1]
    shape = (*rows, columns // form.q_dtype.values_per_element)
    q = args.x.new_empty(shape, dtype=stored_as(form))
    if (of_scales := form_of(form)) is None:
        return q, None
    num_groups = 0 if groups is None else groups.shape[0]
    return q, of_scales.new_a(args.x, Rows(rows, counted(form, args.offs, num_groups)), columns)


class PermuteQuantize(ScaledCall[Arguments, Validated]):
    """Calls of `permute_quantize`: arguments, validation, choice and launch."""

    name = "permute_quantize"
    arguments = Arguments
    config = PermuteQuantizeConfig
    like = "x"
    gradients = "jitgen.ops.tracing.layer_gradients:GATHER"
    graph_names: ClassVar[dict[str, str]] = {"format": "scale_granularity", "global_scale": "scale"}
    validate = staticmethod(validate)

    def check_values(self, args: Arguments, valid: Validated) -> None:
        rows = args.permutation.shape[-1]
        check_values(valid.layout, groups_of(args), rows, start=1)
        owners = None if valid.layout is Layout.CONTIGUOUS else groups_of(args)
        pairs = valid.rows * args.top_k
        check_places("permutation", args.permutation, pairs, "pairs", owners=owners)
        check_places("inverse", args.inverse, rows, "rows")

    def problem(self, args: Arguments, valid: Validated) -> PermuteQuantizeProblem:
        tokens = _expected(args, valid) or valid.rows
        return PermuteQuantizeProblem(
            m=tokens, k=valid.k, top_k=args.top_k, **self.kind(args, valid)
        )

    def kind(self, args: Arguments, valid: Validated) -> dict[str, Any]:
        return {
            "layout": valid.layout,
            "format": valid.format,
            "walk": valid.walk,
            "power_of_two": args.power_of_two,
            "rounding": valid.rounding,
        }

    def family(self, problem: Problem, args: Arguments, valid: Validated) -> Family:
        return Family.of(problem, valid, _expected(args, valid))

    def fitting(
        self, config: PermuteQuantizeConfig, args: Arguments, valid: Validated
    ) -> PermuteQuantizeConfig:
        """
        Return the config that this call needs, with the tiling of `config`. A config that gathers
        serves every call.
        """
        walk = Walk.GATHER if config.walk is Walk.GATHER else valid.walk
        return replace(config, **self.kind(args, valid) | {"walk": walk})

    def rows(self, args: Arguments, valid: Validated) -> int:
        return valid.rows if args.permutation.numel() else 0

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        form, served = valid.format, kernel["config"]
        return Launch(
            **kernel,
            per_element=form.q_dtype.values_per_element,
            q_dtype=stored_as(form),
            form=form_of(form),
            num_groups=counted(form, args.offs, valid.num_groups),
            is_scatter=served.walk is Walk.SCATTER,
            is_relayed=served.tiling.is_relayed,
        )

    def start(self, launch: Launch, args: Arguments) -> Scaled:
        return launch.call(
            *(args.x, args.permutation, args.top_k, groups_of(args)),
            *(args.inverse, args.global_scale, *(args.out or (None, None))),
        )

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        return self.to_results(args, new_tensors(args))

    def finds_scales(self, args: Arguments) -> bool:
        return format_of(args.format, args.q_dtype).has_own_scales


def _expected(args: Arguments, valid: Validated) -> int | None:
    """
    Return the number of tokens that have as many places as all matrices have rows, at `expected_m`
    rows each; None without `expected_m`, or in layouts whose number of rows is known.
    """
    if args.expected_m is None or valid.layout is not Layout.MASKED:
        return None
    return -(-args.expected_m * valid.num_groups // args.top_k)
