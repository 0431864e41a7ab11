# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.config.layouts import ARGUMENT
from jitgen.config.problem import Problem
from jitgen.errors import InputError
from jitgen.formats import atoms, find_format
from jitgen.formats.protocol import TORCH, ScaleFormat
from jitgen.ops.call import Call
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.grouped_gemm.validate import Arguments, Validated, Weights, validate
from jitgen.ops.launch import AnyLaunch, Family, Kernel
from jitgen.ops.tensors import groups_of, result_of
from jitgen.ops.values import check_values
from jitgen.selection.choice import with_numerics
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

SCALED, SCALED_ON_GPU, UNSCALED, ANY = range(4)
"""
Forms in which a warm call launches: the first three are written out in `call.py`, the last is
`run`.
"""


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        config: As in `AnyLaunch`.
        way: How a warm call launches: `SCALED`, `SCALED_ON_GPU`, `UNSCALED` or `ANY`.
        copies_scales: Whether a_scale must be copied, because kernels cannot read its strides.
        unit_scales: Scales of 1, for operands without scales.
        columns: N of the result that the call allocates if `out` is not given.
        out_dtype: Its type.
        spare_rows: For scales in atoms, the number of rows beyond those of a that the blocks of 128
            rows must cover; 0 for other scales. If a has no scales, it only says that b's scales
            are in atoms.
        b_values: Ratio of the values along K in an element of b to those in an element of a.
    """

    config: GroupedGemmConfig
    way: int
    copies_scales: bool
    unit_scales: tuple[Tensor, ...]
    columns: int
    out_dtype: torch.dtype
    spare_rows: int = 0
    b_values: int = 1

    @property
    def is_of_capture(self) -> bool:
        """
        Whether its scales of 1 may belong to a CUDA graph, which fills them only when it is
        replayed.
        """
        return bool(self.unit_scales)

    def new_out(self, a: Tensor) -> Tensor:
        """Return an output with the rows of `a`, on its device, not initialised."""
        return a.new_empty((*a.shape[:-1], self.columns), dtype=self.out_dtype)

    def run(  # the call's own
        self,
        a: Tensor,
        b: Tensor,
        a_scale: Tensor | None,
        b_scale: Tensor | None,
        alpha: Tensor | None,
        bias: Tensor | None,
        groups: Tensor | None,
        out: Tensor,
    ) -> None:
        """
        Launch the kernel, with any set of optional tensors.

        Raises:
            ValueError: Sizes do not fit each other, in one of the two ways that the entry does not
                check.
        """
        more = () if bias is None else (bias,)
        if self.spare_rows:
            given = self._with_atoms(a, b, a_scale, b_scale, alpha)
        elif self.unit_scales:
            given = (a, b, *self.unit_scales)
        else:
            scale = _form(self.config).readable(a_scale) if self.copies_scales else a_scale  # type: ignore[arg-type]
            given = (a, b, scale, b_scale)
        self.function(*given, *more, groups, out, *self.tail)

    def _with_atoms(
        self,
        a: Tensor,
        b: Tensor,
        a_scale: Tensor | None,
        b_scale: Tensor | None,
        alpha: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        """Return operands, and scales in atoms, in the form in which kernels take them."""
        if a.shape[-1] != b.shape[-1] * self.b_values:
            raise ValueError("a has another K than b")
        if a_scale is None:
            return a, b.view(torch.uint8), b_scale
        if a_scale.shape[-3] < (a.shape[-2] + self.spare_rows) // atoms.ROWS:
            raise ValueError("a_scale is too small")
        if self.copies_scales:
            a_scale = _form(self.config).readable(a_scale)
        values = [x.view(torch.uint8) if x.dtype is _PAIRS else x for x in (a, b)]
        return *values, a_scale, b_scale, *(() if alpha is None else (alpha,))


_PAIRS = torch.float4_e2m1fn_x2
"""The type whose tensors are passed to kernels as bytes."""


class AnyGroupedGemm(Call[Arguments[Weights], Validated, Tensor]):
    """Common part of calls of `grouped_gemm` with plain and with prepacked weights."""

    arguments = Arguments
    config = GroupedGemmConfig
    like = "a"

    def check_values(self, args: Arguments[Weights], valid: Validated) -> None:
        check_values(valid.layout, groups_of(args), valid.rows, groups=valid.groups)

    def problem(self, args: Arguments[Weights], valid: Validated) -> GroupedGemmProblem:
        """
        Return the problem that the selector gets. Without `expected_m`, groups share the rows, and
        masked matrices are full. The process's default numerics are written into the problem, so
        that a recording holds them.
        """
        rows = valid.rows * valid.groups if valid.layout is Layout.MASKED else valid.rows
        problem = GroupedGemmProblem(
            layout=valid.layout,
            groups=valid.groups,
            m=rows if args.expected_m is None else args.expected_m * valid.groups,
            n=valid.n,
            k=valid.k,
            a_dtype=valid.operands.a_dtype,
            b_dtype=valid.operands.b_dtype,
            out_dtype=valid.operands.out_dtype,
            scale_granularity=valid.operands.scale_granularity,
            min_latency=args.min_latency,
            numerics=args.numerics,  # type: ignore[arg-type]  # a text, which the field converts
            a_scale_granularity=valid.operands.a_scale_granularity,
            b_layout=valid.operands.b_layout,
            bias=args.bias is not None,
        )
        return with_numerics(problem)

    def family(self, problem: Problem, args: Arguments[Weights], valid: Validated) -> Family:
        return Family.of(problem, valid, args.expected_m)

    def rows(self, args: Arguments[Weights], valid: Validated) -> int:
        return 0 if 0 in valid.shape else valid.rows

    def require_fit(
        self, asked: object, args: Arguments[Weights], valid: Validated
    ) -> GroupedGemmConfig:
        config = explicit_config(asked, GroupedGemmConfig, valid.arch, args.numerics)
        if config.layout is not valid.layout or config.operands != valid.operands:
            raise InputError(
                "config",
                f"must be for {valid.layout}, {valid.operands.text}, as the tensors are "
                f"(got one for {config.layout}, {config.operands.text})",
            )
        require(config, valid.arch)
        if config.epilogue.bias != (args.bias is not None):
            have, none = ("a bias", "none") if config.epilogue.bias else ("no bias", "one")
            raise InputError("config", f"is for {have}, and there is {none}")
        return config


class GroupedGemm(AnyGroupedGemm[Tensor]):
    """
    Calls of `grouped_gemm`, with weights that are a tensor: arguments, validation, choice and
    launch.
    """

    name = "grouped_gemm"
    fixed = ("b", "b_scale")
    unguarded = (*ARGUMENT.values(),)
    gradients = "jitgen.ops.tracing.gradients:GROUPED_GEMM"
    validate = staticmethod(validate)

    def launch(self, args: Arguments[Tensor], valid: Validated, kernel: Kernel) -> Launch:
        device, a_scale, types = args.a.device, args.a_scale, valid.operands
        form = _form(kernel["config"])
        copies_scales = a_scale is not None and not form.is_readable(a_scale)
        way = ANY
        if args.bias is None and not (copies_scales or form.has_atoms):
            of_scales = SCALED_ON_GPU if len(valid.device.tail) == 1 else SCALED
            way = UNSCALED if args.b_scale is None else of_scales
        spare_rows = atoms.ROWS - 1
        if valid.layout is Layout.RAGGED:
            spare_rows *= valid.groups
        return Launch(
            **kernel,
            way=way,
            copies_scales=copies_scales,
            unit_scales=_scales_of_one(device, valid.groups) if args.b_scale is None else (),
            columns=valid.n,
            out_dtype=TORCH[types.out_dtype],
            spare_rows=spare_rows if form.has_atoms else 0,
            b_values=types.b_dtype.values_per_element // types.a_dtype.values_per_element,
        )

    def start(self, launch: Launch, args: Arguments[Tensor]) -> Tensor:
        out = launch.new_out(args.a) if args.out is None else args.out
        tensors = (args.a, args.b, args.a_scale, args.b_scale, args.alpha, args.bias)
        launch.run(*tensors, groups_of(args), out)
        return out

    def new_results(self, args: Arguments[Tensor], valid: Validated | None) -> tuple[Tensor, ...]:
        shape = (*args.a.shape[:-1], args.b.shape[1])
        return (args.a.new_empty(shape, dtype=args.out_dtype or result_of(args.a.dtype)),)


def _form(config: GroupedGemmConfig) -> ScaleFormat:
    """Return the format of the scales of b; a has the same format, or no scales."""
    return find_format(config.operands.scale_granularity)


_unit_scales: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}
"""
Scales of 1 by device and number of groups. They are never freed, because a kernel of any stream may
still read them when the call and the session that made them have ended.
"""


def _scales_of_one(device: torch.device, groups: int) -> tuple[Tensor, Tensor]:
    """Return scales of 1 for a and b. Calls share them, except calls that a CUDA graph captures."""
    place = (device, groups)
    found = _unit_scales.get(place)
    if found is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _ones(device, groups)  # nothing but a replay of that graph fills them
        # In a thread of their own: this one's memory may be a graph's, which torch.compile keeps an
        # account of while it warms up, and takes back.
        with ThreadPoolExecutor(1) as other:
            found = _unit_scales[place] = other.submit(_filled, device, groups).result()
    return found


def _filled(device: torch.device, groups: int) -> tuple[Tensor, Tensor]:
    """
    Return new scales of 1 for a and b, written when this returns, so that every stream may read
    them.
    """
    scales = _ones(device, groups)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return scales


def _ones(device: torch.device, groups: int) -> tuple[Tensor, Tensor]:
    return torch.ones(1, device=device), torch.ones(groups, device=device)
