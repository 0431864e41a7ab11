# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from jitgen.config import Layout
from jitgen.config.format import Format
from jitgen.config.problem import Problem
from jitgen.config.quantize import QuantizeConfig, QuantizeProblem, Rounding
from jitgen.errors import InputError, KernelMiss
from jitgen.events import warn_once
from jitgen.formats import find_format, mx32, nv16
from jitgen.formats.atoms import Atoms
from jitgen.formats.protocol import Rows
from jitgen.ops.call import Call
from jitgen.ops.dispatcher import is_differentiated, require_apart, require_storage
from jitgen.ops.launch import AnyLaunch, Family, Kernel, Key
from jitgen.ops.quantize.validate import (
    Arguments,
    Result,
    Validated,
    layout_of,
    problem_of,
    shapes_of,
    validate,
)
from jitgen.ops.tensors import groups_of
from jitgen.ops.values import check_values
from jitgen.runtime.session import current
from jitgen.support.frozen import frozen


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        q_dtype: Element type of q.
        per_element: Values in an element of q.
        form: The format of the scales.
        num_groups: Groups of ragged rows; 0 for others.
        lead: 1 if x is one matrix and the kernel takes several, otherwise 0.
    """

    q_dtype: torch.dtype
    per_element: int
    form: Atoms
    num_groups: int
    lead: int

    def call(
        self,
        x: Tensor,
        groups: Tensor | None,
        global_scale: Tensor | None,
        out: Result | None = None,
    ) -> Result:
        """Launch the kernel; return q and scales, new or `out`."""
        if out is None:
            *front, size_k = x.shape
            shape = self.form.a_shape(Rows(tuple(front), self.num_groups), size_k)
            q = x.new_empty((*front, size_k // self.per_element), dtype=self.q_dtype)
            scale = x.new_empty(shape, dtype=self.form.dtype)
        else:
            q, scale = out
        given: list[Tensor] = [x, q, scale]
        if self.lead:
            given = [each.unsqueeze(0) for each in given]
        if groups is not None:
            given.insert(1, groups)
        if global_scale is not None:
            given.append(global_scale)
        self.function(*given, *self.tail)
        return q, scale


class Quantize(Call[Arguments, Validated, Result | None]):
    """
    Calls of `jitgen.quantize.mxfp8`, `mxfp4` and `nvfp4`: one operation in a graph.

    The choice between a kernel and torch's operations is made when the operation runs, so a graph
    that was traced on a CPU can run on a GPU.
    """

    name = "quantize"
    arguments = Arguments
    config = QuantizeConfig
    like = "x"
    outputs = ("out", "scale")
    validate = staticmethod(validate)

    def run(self, args: Arguments, key: Key) -> Result:
        """Run a call, with torch's operations if there is no kernel for it."""
        if is_dynamo_compiling():
            has_gradient = torch.is_grad_enabled() and args.x.requires_grad
        else:
            validate(args, current.get(), has_memory=False)
            has_gradient = is_differentiated(args.x)
        found: Result | None = None if has_gradient else super().run(args, key)
        return _in_torch(args) if found is None else found

    def launched(self, args: Arguments, tensors: dict[str, Tensor], key: Key) -> Result | None:
        """Return the result of a kernel; None if torch's operations have to compute it."""
        require_storage(tensors)
        require_apart(tensors, [name for name in tensors if name.startswith("out[")])
        check_values(layout_of(args), groups_of(args), args.x.shape[-2])
        config, x = args.config, args.x
        if validate(args, current.get()) is None:
            if config is not None:
                raise InputError(
                    "config",
                    "is for bfloat16 on a GPU with rows of 16 bytes, K a multiple of 16: leave it "
                    f"out for others (got {x.dtype} on {x.device}, shape {tuple(x.shape)})",
                )
            return None
        try:
            return super().launched(args, tensors, key)
        except KernelMiss as miss:
            if config is not None:
                raise
            what = f"quantize {args.format} {layout_of(args)}"
            warn_once(what, "torch quantises instead: %s", miss)
            return None

    def problem(self, args: Arguments, valid: Validated) -> QuantizeProblem:
        return problem_of(args)

    def family(self, problem: Problem, args: Arguments, valid: Validated) -> Family:
        return Family.of(problem, valid, None)

    def kind(self, args: Arguments, valid: Validated) -> dict[str, object]:
        return {
            "layout": valid.layout,
            "format": Format(args.format),
            "rounding": Rounding(args.rounding),
        }

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        form = find_format(Format(args.format).scales)
        if not isinstance(form, Atoms):
            raise TypeError(f"the scales of {args.format} lie in no atoms")
        is_packed = args.format != Format.MXFP8
        return Launch(
            **kernel,
            q_dtype=torch.uint8 if is_packed else torch.float8_e4m3fn,
            per_element=2 if is_packed else 1,
            form=form,
            num_groups=0 if args.offs is None else len(args.offs),
            lead=int(valid.layout is Layout.CONTIGUOUS and args.x.dim() == 2),
        )

    def start(self, launch: Launch, args: Arguments) -> Result:
        return launch.call(args.x, groups_of(args), args.global_scale, args.out)

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        sizes = shapes_of(Format(args.format), args.x, args.offs)
        return tuple(args.x.new_empty(shape, dtype=dtype) for shape, dtype in sizes)

    def of_results(self, args: Arguments, tensors: tuple[Tensor, ...]) -> Result:
        q, scale = tensors
        return q, scale

    def out_of(self, tensors: tuple[Tensor, ...]) -> Result:
        q, scale = tensors
        return q, scale


def _in_torch(args: Arguments) -> Result:
    """Compute the results with torch's operations, in `out` if it is given."""
    x, offs, out = args.x, args.offs, args.out
    if args.format == Format.NVFP4:
        found = nv16.nvfp4(x, offs=offs, global_scale=args.global_scale)[:2]
    else:
        of = mx32.mxfp8 if args.format == Format.MXFP8 else mx32.mxfp4
        found = of(x, offs=offs, rounding=args.rounding)  # type: ignore[arg-type]
    if out is None:
        return found
    return out[0].copy_(found[0]), out[1].copy_(found[1])
