# SPDX-License-Identifier: Apache-2.0
"""The call of `activation_backward`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config import Arch
from jitgen.config.activation_backward import ActivationBackwardConfig
from jitgen.config.layouts import ARGUMENT
from jitgen.ops.activation_backward.dispatch import ActivationBackward, Launch
from jitgen.ops.activation_backward.validate import Arguments, Results
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.runtime.override import Override
from jitgen.runtime.session import current


def activation_backward(  # noqa: PLR0913  # each is one thing to say
    dy: Tensor,
    x: Tensor,
    weights: Tensor,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    gate_softcap: float | None = None,
    up_softcap: float | None = None,
    out: Results | None = None,
    expected_m: int | None = None,
    config: ActivationBackwardConfig | Override | None = None,
) -> Results:
    """
    Compute the gradient of ``weights[m] * act(x[m])`` for the rows of every group, and that product
    again: the gradient of the weights of the next GEMM needs it.

    With ``g = dy[m, i]`` and the derivatives of act, dx is ``weights[m] * g * act'`` and y is
    ``weights[m] * act``. Each value of sums is the sum of ``g * act`` over 256 columns; the sums of
    a row add up to the gradient of its weight. All arithmetic is float32; dx and y are rounded
    once. Where a gate or an up is beyond a limit, its derivative is 0.

    Args:
        dy: (M, I), or (G, M, I) with `masked_m`: bfloat16, last dimension contiguous. On sm_90a I
            is a multiple of 8, and addresses and strides are multiples of 16 bytes.
        x: (M, 2 I) or (G, M, 2 I) bfloat16, the input of the activation; I columns where
            `activation` has no gate.
        weights: (M,) or (G, M) float32, last dimension contiguous.
        offs: (G,) int32, the ragged layout: for each group, the index after its last row. Exactly
            one of these three is given.
        m_indices: (M,) int32, the contiguous layout: the group of each row, -1 for padding.
        masked_m: (G,) int32, the masked layout: for each group, how many of its M rows are valid.
        activation: As for `jitgen.activation_quantize`; the same holds for the numbers below.
        interleaved: Gates are in the even columns of x, ups in the odd ones.
        swiglu_limit: For activations with it in their formula; the same holds for the numbers
            below.
        swiglu_alpha: Likewise.
        swiglu_beta: Likewise.
        gate_softcap: Likewise.
        up_softcap: Likewise.
        out: Where results go, a tuple in the order in which they are returned: dx, y and sums, each
            dense. Rows of no group are not written.
        expected_m: How many rows a group is expected to have, for choosing a kernel.
        config: A config to use instead of the selector's, or an edited kernel.

    Returns:
        dx: Like x. Rows of no group are not written, here and below.
        y: Like dy.
        sums: (M, ceil(I / 256)) or (G, M, ceil(I / 256)) float32.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.
    """
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        try:
            if m_indices is None and masked_m is None:
                layout, groups = "ragged", offs
            elif offs is None and masked_m is None:
                layout, groups = "contiguous", m_indices
            elif offs is None and m_indices is None:
                layout, groups = "masked", masked_m
            else:  # a mistake: never remembered, so the validation below tells it
                layout, groups = "several", None
            # What a guard knows is not in the key, nor strides, nor that the tensors agree about
            # their sizes: the entry refuses others, and run() replaces it.
            key = (
                "activation_backward",
                dy.shape,  # in its place: `launch.ROWS`
                dy.shape[-1],
                x.shape[-1],
                layout,
                None if m_indices is not None else groups.numel(),  # type: ignore[union-attr]
                activation,
                interleaved,
                swiglu_limit,
                swiglu_alpha,
                swiglu_beta,
                gate_softcap,
                up_softcap,
                None if out is None else tuple([each.shape[-1] for each in out]),
                expected_m,
                None if config is None else id(config),
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, dy):
                if launch.fits(*present(dy, x, weights, groups, *(out or ()))):
                    if out is not None:
                        mark_written(out)
                    return launch.call(dy, x, weights, groups, out)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        *(dy, x, weights, offs, m_indices, masked_m, activation, interleaved),
        *(swiglu_limit, swiglu_alpha, swiglu_beta, gate_softcap, up_softcap),
        *(out, expected_m, config),
    )
    return CALL.run(args, key)


CALL = ActivationBackward(activation_backward)


def check_direct(
    config: ActivationBackwardConfig, arch: Arch, arguments: tuple[object, ...]
) -> None:
    """
    Check the arguments of a direct call of a kernel: dy, x, weights, the tensor that gives
    groups their rows, dx, y, sums, and the numbers of the activation.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

    session, numbers = current.get(), config.activation.numbers
    names = ("dy", "x", "weights", ARGUMENT[config.layout], "dx", "y", "sums")
    found = direct.read(config, arch, session, arguments, names, numbers)
    args = Arguments(
        dy=found["dy"],
        x=found["x"],
        weights=found["weights"],
        **{name: found.get(name) for name in ARGUMENT.values()},
        out=(found["dx"], found["y"], found["sums"]),
        activation=str(config.activation),
        interleaved=config.interleaved,
        **{name: found[name] for name in numbers},
    )
    direct.judge(CALL, config, args, session)
