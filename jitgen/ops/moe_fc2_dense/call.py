# SPDX-License-Identifier: Apache-2.0
"""The public `moe_fc2_dense`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.ops.moe_fc2_dense.dispatch import Launch, MoEFc2Dense
from jitgen.ops.moe_fc2_dense.validate import Arguments
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.support.moved import MISSING, with_new_names


def moe_fc2_dense(  # each is one thing to say
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    router_weights: Tensor = MISSING,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: MoEFc2DenseConfig | Override | None = None,
    **old: object,
) -> Tensor:
    """
    Multiply every token by every expert's weights, and add up the weighted results of the experts.

    ``out[t, n] = sum over e of router_weights[t, e] * sum over i of a[t, e, i] * b[e, n, i]``,
    times the scales: the second GEMM of an MoE layer and its combine in one launch, without
    gathering, padding or scattering. It also multiplies tokens by experts to which they are not
    routed. With few tokens that costs no time, because reading the weights takes longer. Experts to
    which no token of a tile is routed are neither read nor multiplied.
    `jitgen.ops.moe_fc2_dense.ways` predicts when it pays.

    Products are added in float32 and promoted once per 128 of an expert's K, with the router's
    weight; where the tensor core applies the scales, once per expert. The kernel is compiled at the
    first call that needs it, unless it was prewarmed or JITGEN_ON_MISS says otherwise; it runs on
    the current stream of the tensors' device, and the host does not wait for it.

    Args:
        a: (T, E, I) float8_e4m3fn: for each of T tokens and E experts the activations of that
            expert. I is contiguous; other strides are free, so the order in memory may be (E, T,
            I). On GPUs I is a multiple of 16, of e2m1 of 32, and addresses and strides are
            multiples of 16 bytes, as for b and out. Values of experts with a weight of 0 must be
            finite, because they are multiplied by 0. On sm_100a, sm_103a and the cpu also MXFP8,
            MXFP4 and NVFP4; of e2m1 (T, E, I / 2) uint8 or float4_e2m1fn_x2.
        b: (E, N, I), type and device of `a`, I contiguous: the weights that `jitgen.grouped_gemm`
            takes. On GPUs N values of the output's type are a multiple of 16 bytes.
        a_scale: (E, T, ceil(I / 128)) float32 on the same device, as `jitgen.quantize` and, with
            `masked_m`, `jitgen.activation_quantize` give them for (E, T, I). Kernels read them with
            T contiguous, and the other strides multiples of 4; any other order costs a copy at each
            call.
        b_scale: (E, ceil(N / 128), ceil(I / 128)) float32 on the same device, last dimension
            contiguous. In atoms, a_scale and b_scale are as `jitgen.grouped_gemm` takes them for
            masked rows (E, T, I) and for b; the scales of every token are finite.
        router_weights: (T, E) float32 on the same device, 0 where a token is not routed to the
            expert; with NVFP4 times the global scales of a and of the expert's b. Kernels read it
            with T contiguous and the stride of E a multiple of 4, which ``torch.zeros(E, ceil(T /
            4) * 4).T[:T]`` has; any other order costs a copy.
        out: (T, N), N contiguous: where the result goes.
        out_dtype: Type of the result if `out` is None: bfloat16 (the default), float16 or float32.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.
        **old: Arguments by their old names: see docs/renamed.md.

    Returns:
        `out`, or a new tensor.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. While autograd is on, so is a tensor that requires a gradient, because there is
            none.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation,
    ``torch.ops.jitgen.moe_fc2_dense``; see `jitgen.ops.tracing`.
    """
    if old:
        return moe_fc2_dense(**with_new_names(moe_fc2_dense, locals()))
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        try:
            # What a guard knows is not in the key, nor strides, nor that the tensors agree about
            # their sizes: the entry refuses others, and run() replaces it.
            key = (
                "moe_fc2_dense",
                router_weights.shape[0],  # in its place: `launch.ROWS`
                b.shape,
                b_scale.shape,
                out_dtype,
                None if config is None else id(config),
                out is None,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, router_weights):
                if launch.fits(*present(a, b, a_scale, b_scale, router_weights, out)):
                    if out is not None:
                        mark_written((out,))
                    return launch.call(a, b, a_scale, b_scale, router_weights, out)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        a=a,
        b=b,
        a_scale=a_scale,
        b_scale=b_scale,
        router_weights=router_weights,
        out=out,
        out_dtype=out_dtype,
        config=config,
    )
    return CALL.run(args, key)


CALL = MoEFc2Dense(moe_fc2_dense)
