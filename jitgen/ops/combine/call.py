# SPDX-License-Identifier: Apache-2.0
"""The public `combine`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.combine import CombineConfig
from jitgen.ops.combine.dispatch import Combine, Launch
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
    Add up the weighted rows of each token: the step of an MoE layer after its second GEMM.

    ``out[t] = sum over j of topk_weights[t, j] * y[inverse[t, j]] + shared[t]`` in float32, j
    ascending, rounded once at the end; places whose row is -1 are left out, and `shared` may have a
    weight for each token. On a GPU a product is added by one fused operation. The result of a token
    depends on its own inputs alone, and equal inputs give equal bits. The kernel is compiled at the
    first call that needs it, unless it was prewarmed or JITGEN_ON_MISS says otherwise; it runs on
    the current stream of the tensors' device, and the host does not wait for it.

    Args:
        y: (M, N) bfloat16, rows of the second GEMM's result, last dimension contiguous; or (G, M,
            N) of the masked layout, whose rows count one matrix after the other. On a GPU N is a
            multiple of 8, and address and strides are multiples of 16 bytes.
        inverse: (T, top_k) int32, as `jitgen.route` gives it: the row of each of a token's places,
            -1 where it has none. `top_k` is at most 32. The values are read on the device and not
            checked; an index outside of y counts as -1.
        topk_weights: (T, top_k) float32.
        shared: (T, N) bfloat16, the output of a shared expert, which is added at the end; layout as
            that of y.
        out: (T, N) bfloat16, where the result goes; layout as that of y. It may be `shared`.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.
        shared_weights: (T,) float32, factors of the rows of `shared`: the gate of a shared expert
            (Qwen3-Next); or, where `shared` is the tokens themselves, the weights of identity
            experts (LongCat). None: 1.

    Returns:
        (T, N) bfloat16: `out`, or a new tensor.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. With `out` a tensor that requires a gradient is wrong while autograd is on.
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
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, inverse):
                if launch.fits(*present(y, inverse, topk_weights, shared, out, shared_weights)):
                    if out is not None:
                        mark_written((out,))
                    return launch.call(y, inverse, topk_weights, shared, out, shared_weights)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(y, inverse, topk_weights, shared, out, config, shared_weights)
    return CALL.run(args, key)


CALL = Combine(combine)
