# SPDX-License-Identifier: Apache-2.0
"""The public `combine`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.combine import CombineConfig
from jitgen.ops.combine.dispatch import Combine
from jitgen.ops.combine.validate import Arguments
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.runtime.override import Override
from jitgen.runtime.session import current


def combine(
    y: Tensor,
    inverse: Tensor,
    topk_weights: Tensor,
    *,
    shared: Tensor | None = None,
    out: Tensor | None = None,
    config: CombineConfig | Override | None = None,
    shared_weights: Tensor | None = None,
) -> Tensor:
    """
    Add up the weighted rows of each token: what an MoE layer does behind its second GEMM.

    ``out[t] = sum over j of topk_weights[t, j] * y[inverse[t, j]] + shared[t]`` in float32, j
    ascending, rounded once at the end; places whose row is -1 are left out, and `shared` may have a
    weight for each token. On a GPU a product is
    added by one fused operation. The same values always give the same bits, whatever else is in
    the call. The kernel is compiled at the first call that needs it, unless it was prewarmed or
    JITGEN_ON_MISS says otherwise; it runs on the current stream of the tensors' device, and nothing
    waits.

    Args:
        y: (M, N) bfloat16, rows of the second GEMM's result, last dimension contiguous; or (G, M,
            N) of the masked layout, whose rows count one matrix after the other. On a GPU N is a
            multiple of 8, and address and strides are multiples of 16 bytes.
        inverse: (T, top_k) int32, as `jitgen.route` gives it: the row of each of a token's places,
            -1 where it has none. At most 32 places. Read on the device and not checked; a row that
            y has not counts as none.
        topk_weights: (T, top_k) float32.
        shared: (T, N) bfloat16, what a shared expert gave, added at the end; memory as of y.
        out: (T, N) bfloat16, where the result goes; memory as of y. It may be `shared`.
        config: A config to use instead of the selector's, or an edited kernel: see
            `jitgen.override`.
        shared_weights: (T,) float32, what rows of `shared` are multiplied with: the gate of a
            shared expert (Qwen3-Next), or the weights of experts that give the token itself, which
            is `shared` then (LongCat). None: 1.

    Returns:
        (T, N) bfloat16: `out`, or a new tensor.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
            With `out` a tensor that requires a gradient is wrong while autograd is on.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation, ``torch.ops.jitgen.combine``;
    see `jitgen.ops.tracing`.
    """
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        try:
            # What a guard knows is not in the key, nor strides, nor that the tensors agree about
            # their sizes: the entry refuses others, and run() replaces it.
            key = (
                "combine",
                inverse.shape[0],  # in its place: `launch.ROWS`
                inverse.shape[1],
                y.shape[-1],
                y.dim(),
                None if config is None else id(config),
                shared is None,
                out is None,
                shared_weights is None,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            for launch in session.memo.get(key) or similar(session, key, inverse):
                if launch.fits(*present(y, inverse, topk_weights, shared, out, shared_weights)):
                    if out is not None:
                        mark_written((out,))
                    return launch.call(  # type: ignore[no-any-return]
                        y, inverse, topk_weights, shared, out, shared_weights
                    )
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(y, inverse, topk_weights, shared, out, config, shared_weights)
    return CALL.run(args, key)


CALL = Combine(combine)
