# SPDX-License-Identifier: Apache-2.0
"""The public `add_lora`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config import Arch
from jitgen.config.add_lora import AddLoraConfig
from jitgen.ops.add_lora import OPERATION
from jitgen.ops.add_lora.dispatch import AddLora, Launch
from jitgen.ops.add_lora.validate import Arguments
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.runtime.override import Override
from jitgen.runtime.session import current


def add_lora(  # noqa: PLR0913  # each is one thing to say
    y: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    adapter_ids: Tensor,
    topk_ids: Tensor,
    permutation: Tensor,
    *,
    first_expert: int = 0,
    by_row: bool = False,
    out: Tensor | None = None,
    config: AddLoraConfig | Override | None = None,
) -> Tensor:
    """
    Add low-rank adapters (LoRA) to the rows of a grouped product; each row uses the adapter of its
    token.

    Row m belongs to pair ``p = permutation[m]``: token ``t = p // top_k``, expert ``e`` of
    ``topk_ids`` for that pair, adapter ``l = adapter_ids[t]``. Then ``out[m] = y[m] + scales[l] *
    b[l, e] . (a[l, e] . x[t])``, in float32, rounded once. If a has twice as many rows as b has
    columns, the first half of these rows is for the first half of y's columns and the second half
    for the second: so gates and ups have separate adapters. Rows of tokens without an adapter are
    copied from y. Equal inputs always give equal bits.

    Args:
        y: (M, N) bfloat16, last dimension contiguous: the product with the weights.
        x: (T, K) bfloat16, or (M, K) with `by_row`: the operand that was multiplied by the weights,
            before its quantisation. On sm_90a, K and N (or each half of N) are multiples of 8, and
            addresses and strides of matrices are multiples of 16 bytes.
        a: (L, G, R, K) bfloat16: L adapters for G experts; R is the rank, or twice the rank.
        b: (L, G, N, rank) bfloat16, a contiguous matrix for each adapter and expert. The rank is 8,
            16, 32 or 64; pad adapters of other ranks with zeros.
        scales: (L,) float32.
        adapter_ids: (T,) int32: the adapter of each token; -1, or any number outside 0 to L - 1,
            for no adapter.
        topk_ids: (T, top_k) int32: the experts of each token, numbered over the whole layer.
        permutation: (M,) int32, as `jitgen.route` and `jitgen.sort_pairs` give it: the pair of each
            row. Rows of -1 are not written.
        first_expert: The number of the first of the G experts.
        by_row: Whether x has one row for each row of y, as for the second product of a layer;
            otherwise it has one row for each token.
        out: (M, N) bfloat16, where the result goes, last dimension contiguous. It may be y.
        config: A config to use instead of the selector's, or an edited kernel.

    Returns:
        (M, N) bfloat16: `out`, or a new tensor.

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
            # What a guard knows is not in the key, nor strides, nor that the tensors agree about
            # their sizes: the entry refuses others, and run() replaces it.
            key = (
                "add_lora",
                y.shape[0],  # in its place: `launch.ROWS`
                y.shape[1],
                topk_ids.shape[1],
                a.shape,
                b.shape[3],
                first_expert,
                by_row,
                out is None,
                None if config is None else id(config),
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            given = (y, x, a, b, scales, adapter_ids, topk_ids, permutation)
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, y):
                if launch.fits(*present(*given, out)):
                    if out is not None:
                        mark_written((out,))
                    return launch.call(*given, out=out)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        *(y, x, a, b, scales, adapter_ids, topk_ids, permutation),
        *(first_expert, by_row, out, config),
    )
    return CALL.run(args, key)


CALL = AddLora(add_lora)


def check_direct(config: AddLoraConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel: the tensors of the public call, out, and the
    number of the first expert.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

    session = current.get()
    *tensors, first = OPERATION.arguments
    found = direct.read(config, arch, session, arguments, tensors, (first,), CALL.in_place)
    direct.judge(CALL, config, Arguments(**found, by_row=config.by_row), session)
