# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `grouped_gemm`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands
from jitgen.config.layouts import ARGUMENT
from jitgen.formats import find_format
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.grouped_gemm.call import CALL
from jitgen.ops.grouped_gemm.prepacked_validate import PrepackedArguments
from jitgen.ops.grouped_gemm.prepacked_validate import validate as validate_prepacked
from jitgen.ops.grouped_gemm.validate import Arguments, validate
from jitgen.runtime.session import current
from jitgen.targets.fp4_space import format_of


def check(config: GroupedGemmConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check a, b, the scales that `config` needs, alpha, a bias, the tensor that gives groups their
    rows, and out. For prepacked weights, b and b_scale are the values and the factor.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session, types = current.get(), config.operands
    found = direct.read(config, arch, session, arguments, names_of(config))
    if types.b_layout.is_prepacked:
        args: Any = _prepacked(config, found)
        valid = validate_prepacked(args, session)
    else:
        args = Arguments(**found)
        valid = validate(args, session)
    CALL.require_fit(config, args, valid)
    direct.require_rows("a", valid.rows)
    if not types.b_layout.is_prepacked:
        direct.require_bytes("a", found["a"])
        direct.require_bytes("b", found["b"])
    if (scale := args.a_scale) is not None:
        direct.require_readable("a_scale", scale, find_format(_granularity_of_a(types)))
    CALL.check_values(args, valid)


def names_of(config: GroupedGemmConfig) -> tuple[str, ...]:
    """Return the names of an entry's tensors."""
    types = config.operands
    is_prepacked = types.b_layout.is_prepacked  # whose factor is in the place of alpha
    has_alpha = types.scale_granularity is ScaleGranularity.NV16 and not is_prepacked
    return (
        *("a", "b"),
        *([] if types.a_scale_granularity is ScaleGranularity.NONE else ["a_scale"]),
        "b_scale",
        *(["alpha"] if has_alpha else []),
        *(["bias"] if config.epilogue.bias else []),
        *(ARGUMENT[config.layout], "out"),
    )


def _granularity_of_a(types: Operands) -> ScaleGranularity:
    return types.a_scale_granularity or types.scale_granularity


def _prepacked(config: GroupedGemmConfig, found: dict[str, Any]) -> PrepackedArguments:
    """Return the arguments of the public call; N and K of the weights are those of out and a."""
    out, a = found["out"], found["a"]
    for name, tensor in (("out", out), ("a", a)):
        if tensor.dim() < 2:
            common.require(name, tensor, rank=(2, "rows by columns"))
    weights = PrepackedWeights(
        values=found["b"],
        factor=found["b_scale"],
        n=out.shape[-1],
        k=a.shape[-1],
        layout=config.operands.b_layout,
        format=format_of(config.operands),
    )
    return Arguments(**found | {"b": weights, "b_scale": None})
