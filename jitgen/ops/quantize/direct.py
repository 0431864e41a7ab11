# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `quantize`: see `jitgen.ops.direct`."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.format import Format
from jitgen.config.quantize import QuantizeConfig
from jitgen.errors import InputError
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.quantize.call import CALL
from jitgen.ops.quantize.validate import Arguments, check_out, problem_of, validate
from jitgen.ops.quantize.validate import check as check_quantized
from jitgen.ops.tensors import groups_of
from jitgen.ops.values import check_values
from jitgen.runtime.session import current


def check(config: QuantizeConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check x, offs or masked_m if `config` has groups, q, scale, and for NVFP4 the global scale.
    Without groups, x, q and scale have a leading dimension for matrices.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session, layout = current.get(), config.layout
    of_groups = {Layout.RAGGED: ("offs",), Layout.MASKED: ("masked_m",)}.get(layout, ())
    overall = ("global_scale",) if config.format is Format.NVFP4 else ()
    names = ("x", *of_groups, "q", "scale", *overall)
    found = direct.read(config, arch, session, arguments, names)
    x, offs, masked_m = found["x"], found.get("offs"), found.get("masked_m")
    rank, of = (2, "(M, K)") if layout is Layout.RAGGED else (3, "(G, M, K)")
    common.require("x", x, rank=(rank, of))
    if offs is not None:
        common.require("offs", offs, rank=(1, "(G,)"))
        common.check_groups("offs", offs, offs.shape[0], ("x", x.device))
        direct.require_rows("offs", offs.shape[0])
    check_quantized(config.format, x, offs, masked_m, str(config.rounding))
    if overall:
        _check_global(x, found["global_scale"])
    direct.require_rows("x", x.shape[:-1].numel())
    results = (found["q"], found["scale"])
    check_out(results, config.format, x, offs)
    args = Arguments(
        x=x,
        offs=offs,
        masked_m=masked_m,
        global_scale=found.get("global_scale"),
        format=str(config.format),
        rounding=str(config.rounding),
        out=results,
    )
    valid = validate(args, session)
    if valid is None:
        raise InputError(
            "x",
            f"must be bfloat16 in rows of 16 bytes, K a multiple of 16, that {arch} has a kernel "
            f"for: {problem_of(args).types} (got {x.dtype} of {tuple(x.shape)}, strides "
            f"{x.stride()})",
        )
    CALL.require_fit(config, args, valid)
    check_values(layout, groups_of(args), x.shape[-2])


def _check_global(x: Tensor, scale: Tensor) -> None:
    """Require a float32 scale for each matrix of x, or one for all ragged rows."""
    count = x.shape[0] if x.dim() == 3 else 1
    common.require(
        "global_scale",
        scale,
        [torch.float32],
        shape=((count,), "one for each matrix of x"),
        contiguous=-1,
    )
