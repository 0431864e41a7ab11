# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.errors import InputError
from jitgen.formats import atoms, find_format
from jitgen.formats.block128 import is_kernel_layout, kernel_layout
from jitgen.formats.protocol import TORCH, ScaleFormat
from jitgen.ops.call import Call
from jitgen.ops.direct import require_bytes, require_readable
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.launch import AnyLaunch, Kernel
from jitgen.ops.moe_fc2_dense.validate import Arguments, Validated, validate
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        form: The format of the scales.
        copies: Whether a_scale or alpha must be copied, because kernels cannot read their strides.
        columns: N of the result that the call allocates if `out` is not given.
        out_dtype: Its type.
    """

    form: ScaleFormat
    copies: bool
    columns: int
    out_dtype: torch.dtype

    def call(  # the tensors
        self,
        a: Tensor,
        b: Tensor,
        a_scale: Tensor,
        b_scale: Tensor,
        alpha: Tensor,
        out: Tensor | None,
    ) -> Tensor:
        """
        Launch the kernel, into `out` if it is given; return the result.

        Raises:
            ValueError: There are not enough atoms for the tokens; the entry does not check this.
        """
        if self.form.has_atoms:
            if a_scale.shape[-3] * atoms.ROWS < alpha.shape[0]:
                raise ValueError("a_scale is too small")
            if a.dtype is _PAIRS:
                a = a.view(torch.uint8)
            if b.dtype is _PAIRS:
                b = b.view(torch.uint8)
        if out is None:
            out = a.new_empty((a.shape[0], self.columns), dtype=self.out_dtype)
        if self.copies:
            a_scale, alpha = self.form.readable(a_scale), kernel_layout(alpha)
        self.function(a, b, a_scale, b_scale, alpha, out, *self.tail)
        return out


_PAIRS = torch.float4_e2m1fn_x2
"""The type whose tensors are passed to kernels as bytes."""


class MoEFc2Dense(Call[Arguments, Validated, Tensor]):
    """Calls of `moe_fc2_dense`: arguments, validation, choice and launch."""

    name = "moe_fc2_dense"
    arguments = Arguments
    config = MoEFc2DenseConfig
    like = "a"
    graph_names: ClassVar[dict[str, str]] = {"router_weights": "alpha"}
    validate = staticmethod(validate)

    def problem(self, args: Arguments, valid: Validated) -> MoEFc2DenseProblem:
        """
        Return the problem for the selector. Its number of experts of a token is unknown, because no
        argument gives it.
        """
        return MoEFc2DenseProblem(
            groups=valid.groups,
            m=valid.rows,
            n=valid.n,
            k=valid.k,
            a_dtype=valid.a_dtype,
            out_dtype=valid.out_dtype,
            scale_granularity=valid.scale_granularity,
        )

    def require_fit(self, asked: object, args: Arguments, valid: Validated) -> MoEFc2DenseConfig:
        config = explicit_config(asked, MoEFc2DenseConfig, valid.arch)
        if config.operands != valid.operands:
            have, wanted = config.operands.to_json(), valid.operands.to_json()
            others = [name for name in wanted if wanted[name] != have[name]]
            raise InputError(
                "config",
                "must be for what the tensors are, "
                + ", ".join(f"{name} {wanted[name]}" for name in others)
                + f" (got one for {config.to_name()})",
            )
        require(config, valid.arch)
        return config

    def entry_tensors(self, config: MoEFc2DenseConfig) -> tuple[str, ...]:
        return ("a", "b", "a_scale", "b_scale", "router_weights", "out")

    def check_entry(self, args: Arguments, valid: Validated) -> None:
        require_bytes("a", args.a)
        require_bytes("b", args.b)
        require_readable("a_scale", args.a_scale, find_format(valid.scale_granularity))
        if not is_kernel_layout(args.router_weights):
            raise InputError(
                "router_weights",
                "must have tokens contiguous and experts 16 bytes apart, or a multiple (got "
                f"strides {args.router_weights.stride()})",
            )

    def launch(self, args: Arguments, valid: Validated, kernel: Kernel) -> Launch:
        form = find_format(valid.scale_granularity)
        return Launch(
            **kernel,
            form=form,
            copies=not (form.is_readable(args.a_scale) and is_kernel_layout(args.router_weights)),
            columns=valid.n,
            out_dtype=TORCH[valid.out_dtype],
        )

    def start(self, launch: Launch, args: Arguments) -> Tensor:
        return launch.call(
            args.a, args.b, args.a_scale, args.b_scale, args.router_weights, args.out
        )

    def new_results(self, args: Arguments, valid: Validated | None) -> tuple[Tensor, ...]:
        shape = (args.a.shape[0], args.b.shape[1])
        return (args.a.new_empty(shape, dtype=args.out_dtype or torch.bfloat16),)
