# SPDX-License-Identifier: Apache-2.0
"""
What torch.compile reads in the place of our functions: it can follow neither the memo nor a kernel.

Nothing else imports this module, because it imports the whole of torch.compile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.grouped_gemm import KernelConfig
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.config.moe_fc2_dense import MoeFc2DenseConfig
from jitgen.config.quantize import Format, QuantizeConfig
from jitgen.config.silu_mul_quantize import SiluMulQuantizeConfig
from jitgen.formats.prepared import PreparedWeights
from jitgen.ops.grouped_gemm.prepared_validate import PreparedArguments
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments as WgradArguments
from jitgen.ops.moe_fc2_dense.validate import Arguments as Fc2Arguments
from jitgen.ops.silu_mul_quantize.validate import Arguments
from jitgen.ops.tracing import grouped_gemm_wgrad as wgrad
from jitgen.ops.tracing import moe_fc2_dense as fc2
from jitgen.ops.tracing import prepared_gemm as prepared
from jitgen.ops.tracing import quantize as quantizing
from jitgen.ops.tracing import silu_mul_quantize as silu
from jitgen.ops.tracing.grouped_gemm import name_of, operation, operation_out
from jitgen.runtime.override import Override

_kept: dict[int, Config | Override] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _name(config: KernelConfig | Override, device: torch.device) -> str | None:
    """
    Return what stands for `config` in a graph.

    torch.compile asks once, does not look into it, where it would take sizes of tiles for sizes of
    tensors, and guards on its identity. So we keep it: its address must not become another's.
    """
    _kept[id(config)] = config
    return name_of(config, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _silu_name(config: SiluMulQuantizeConfig | Override, device: torch.device) -> str | None:
    """Return the same for another operation."""
    _kept[id(config)] = config
    return silu.name_of(config, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _fc2_name(config: MoeFc2DenseConfig | Override, device: torch.device) -> str | None:
    """Return the same for the third."""
    _kept[id(config)] = config
    return fc2.name_of(config, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _wgrad_name(config: GroupedGemmWgradConfig | Override, device: torch.device) -> str | None:
    """Return the same for the gradient of weights."""
    _kept[id(config)] = config
    return wgrad.name_of(config, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _quantize_name(config: QuantizeConfig | Override, device: torch.device) -> str | None:
    """Return the same for the fourth."""
    _kept[id(config)] = config
    return quantizing.name_of(config, device)


def grouped_gemm(  # noqa: PLR0913, PLR0917  # as the public one
    a: Tensor,
    b: Tensor | PreparedWeights,
    a_scale: Tensor | None,
    b_scale: Tensor | None,
    offs: Tensor | None,
    m_indices: Tensor | None,
    masked_m: Tensor | None,
    alpha: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    expected_m: int | None,
    min_latency: bool | None,
    numerics: str | None,
    config: KernelConfig | Override | None,
) -> Tensor:
    """Call the operation, which is all that the graph holds."""
    if isinstance(b, PreparedWeights):
        given = PreparedArguments(
            a=a,
            b=b,
            a_scale=a_scale,
            b_scale=b_scale,
            offs=offs,
            m_indices=m_indices,
            masked_m=masked_m,
            alpha=alpha,
            bias=bias,
            out=out,
            out_dtype=out_dtype,
            expected_m=expected_m,
            min_latency=min_latency,
            numerics=numerics,
        )
        return prepared.call(given, None if config is None else _name(config, a.device))
    tensors = (a, b, a_scale, b_scale, offs, m_indices, masked_m, alpha)
    name = None if config is None else _name(config, a.device)
    rest = (out_dtype, expected_m, min_latency, name, bias, numerics)
    if out is None:
        result: Tensor = operation(*tensors, *rest)
        return result
    operation_out(out, *tensors, *rest)
    return out


def silu_mul_quantize(  # noqa: PLR0913, PLR0917  # as the public one
    x: Tensor,
    offs: Tensor | None,
    m_indices: Tensor | None,
    masked_m: Tensor | None,
    scale_granularity: str,
    scale: Tensor | None,
    activation: str,
    interleaved: bool,
    limit: float | None,
    alpha: float | None,
    power_of_two: bool,
    out: Tensor | None,
    expected_m: int | None,
    config: SiluMulQuantizeConfig | Override | None,
) -> tuple[Tensor, Tensor | None]:
    """Call the operation, which is all that the graph holds."""
    given = Arguments(
        x=x,
        offs=offs,
        m_indices=m_indices,
        masked_m=masked_m,
        scale_granularity=scale_granularity,
        scale=scale,
        activation=activation,
        interleaved=interleaved,
        limit=limit,
        alpha=alpha,
        power_of_two=power_of_two,
        out=out,
        expected_m=expected_m,
    )
    return silu.call(given, None if config is None else _silu_name(config, x.device))


def moe_fc2_dense(  # as the public one
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    alpha: Tensor,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    config: MoeFc2DenseConfig | Override | None,
) -> Tensor:
    """Call the operation, which is all that the graph holds."""
    given = Fc2Arguments(
        a=a,
        b=b,
        a_scale=a_scale,
        b_scale=b_scale,
        alpha=alpha,
        out=out,
        out_dtype=out_dtype,
    )
    return fc2.call(given, None if config is None else _fc2_name(config, a.device))


def grouped_gemm_wgrad(  # as the public one
    dy: Tensor,
    a: Tensor,
    offs: Tensor | None,
    masked_m: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    expected_m: int | None,
    config: GroupedGemmWgradConfig | Override | None,
) -> Tensor:
    """Call the operation, which is all that the graph holds."""
    given = WgradArguments(
        dy=dy,
        a=a,
        offs=offs,
        masked_m=masked_m,
        out=out,
        out_dtype=out_dtype,
        expected_m=expected_m,
    )
    return wgrad.call(given, None if config is None else _wgrad_name(config, a.device))


def quantize(  # as `jitgen.ops.quantize.call.quantized`
    form: Format,
    x: Tensor,
    offs: Tensor | None,
    masked_m: Tensor | None,
    global_scale: Tensor | None,
    rounding: str,
    out: tuple[Tensor, Tensor] | None,
    config: QuantizeConfig | Override | None,
) -> tuple[Tensor, Tensor]:
    """Call the operation, which is all that the graph holds."""
    name = None if config is None else _quantize_name(config, x.device)
    return quantizing.call(out, x, form.value, offs, masked_m, global_scale, rounding, name)
