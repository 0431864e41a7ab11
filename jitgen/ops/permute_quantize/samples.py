# SPDX-License-Identifier: Apache-2.0
"""Calls of `permute_quantize` that put a kernel to the test, and what they must give."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.config.operation import Result
from jitgen.config.permute_quantize import Format, PermuteQuantizeConfig, Walk
from jitgen.errors import ConfigError
from jitgen.formats import atoms
from jitgen.formats.protocol import Rows
from jitgen.ops.permute_quantize import reference
from jitgen.ops.permute_quantize import sorted_samples as sorting
from jitgen.ops.permute_quantize.dispatch import new_by_token, new_tensors
from jitgen.ops.permute_quantize.validate import Arguments
from jitgen.ops.solved import (
    Compared,
    compared,
    nothing_unreachable,
    numbers_of,
    rows_in_words,
    unequal_rows,
)
from jitgen.support.frozen import frozen

UNTOUCHED = 77
"""What bytes of q and scales hold before."""

_WARP = 32
_COLUMNS = 16
_WORDS = {
    Format.BLOCK128: "block128",
    Format.MXFP8: "mx32",
    Format.MXFP4: "mx32",
    Format.NVFP4: "nv16",
}


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group. With rows of no group their pairs are those of the tokens.
        top_k: Places of a token.
        k: Columns.
        num_sms: SMs of the GPU: few, so that a warp gets several tiles.
    """

    rows: tuple[int, ...]
    top_k: int
    k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: PermuteQuantizeConfig, arch: Arch) -> tuple[Self, ...]:  # noqa: ARG003
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it; more places than a loop takes at once; and more
        columns than the threads of a CTA hold, with a tail.
        """
        tiling = config.tiling
        wide = tiling.vector * (tiling.threads * tiling.held if _is_row(config) else _WARP)
        tall = atoms.ROWS + 1 if config.format.has_atoms else 2 * tiling.rows
        rows = (3, 0, tiling.rows + 1, *[0] * _WARP, tiling.rows - 1, tall, 9 * tiling.rows)
        return (cls(rows=rows, top_k=7, k=wide + 8 * _COLUMNS + _COLUMNS),)

    @classmethod
    def parse(cls, text: str, config: PermuteQuantizeConfig) -> Self:  # noqa: ARG003  # any serves
        """
        Return the sizes that ``G:M:K:TOP`` stands for: M rows in G groups, as unequal as it goes.

        Raises:
            ConfigError: `text` is something else.
        """
        groups, m, k, top_k = numbers_of(text, 4)
        if min(groups, k, top_k) < 1 or k % _COLUMNS or top_k > _WARP:
            raise ConfigError(
                f"problem {text!r} is not G:M:K:TOP: groups, rows in all, K, a multiple of "
                f"{_COLUMNS}, and places of a token, at most {_WARP}"
            )
        rows = unequal_rows(m, groups)
        return cls(rows=rows, top_k=top_k, k=k)

    def __str__(self) -> str:
        """Return the sizes in words."""
        rows = rows_in_words(self.rows)
        return f"rows {rows}, top {self.top_k}, K {self.k}, {self.num_sms} SMs"


def _is_row(config: PermuteQuantizeConfig) -> bool:
    return config.format is Format.ROW


@frozen
class Solved(Compared):
    """
    A call with its answer.

    Attributes:
        tensors: What kernels take, in order, without the number of SMs.
        named: What `jitgen.permute_quantize`, or `sort_quantize`, takes besides x, by its names.
        is_exact: Whether values are small integers; results are exact whatever they are.
        owned: Rows that belong to a group.
        has_scale: Which bytes of the scales belong to a row; None where the kernel finds none.
        q, scale: What the kernel writes.
        expected_q, expected_scale: What they must be.
        order: Where the kernel sorts, offs, permutation and inverse, by their names.
        expected_order: What they must be.
    """

    tensors: tuple[Any, ...]
    named: dict[str, Any]
    is_exact: bool
    owned: Tensor
    has_scale: Tensor | None
    q: Tensor
    scale: Tensor | None
    expected_q: Tensor
    expected_scale: Tensor | None
    order: dict[str, Tensor]
    expected_order: dict[str, Tensor]

    def solve(self, function: Callable[..., tuple[Any, ...]]) -> int:
        """Let what takes the arguments of `named` solve it; return `wrong`."""
        _, scale, *order = function(self.tensors[0], out=self.q, **self.named)
        for found in order:
            for name, tensor in self.order.items():
                tensor.copy_(getattr(found, name))
        if self.scale is not None and scale is not None and self.has_scale is not None:
            mine = _bytes(self.scale)
            mine[self.has_scale] = _bytes(scale)[self.has_scale]
        return self.wrong()

    def results(self) -> list[Result]:
        """Return the results, byte by byte."""
        group = torch.where(self.owned, 0, -1).flatten()
        q, expected = _bytes(self.q), _bytes(self.expected_q)
        nan = _nans(self.q) & _nans(self.expected_q)
        found = [_result("q", q, expected, nan, self.owned.unsqueeze(-1).expand(q.shape), group)]
        has, every = self.has_scale, torch.zeros(1, dtype=torch.int64)
        if has is not None and self.scale is not None and self.expected_scale is not None:
            nan = _nans(self.scale) & _nans(self.expected_scale)
            scale, expected = _bytes(self.scale), _bytes(self.expected_scale)
            found.append(_result("scale", scale, expected, nan, has, every))
        for name, numbers in self.order.items():
            none, all_ = (torch.full_like(numbers, b, dtype=torch.bool) for b in (0, 1))
            found.append(_result(name, numbers, self.expected_order[name], none, all_, every))
        return found

    def errors(self) -> tuple[float, float]:
        """Return the part of the bytes that are wrong, and whether one is."""
        wrong = self.wrong()
        return wrong / max(1, self.q.numel()), float(wrong > 0)


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, those of a value together: its shape, and one more side."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.view(kinds[tensor.element_size()])


def _nans(tensor: Tensor) -> Tensor:
    """Return which values are a NaN, of which there are several."""
    if tensor.dtype is torch.uint8:
        return torch.zeros_like(tensor, dtype=torch.bool)
    return tensor.float().isnan()


def _result(
    name: str, found: Tensor, expected: Tensor, nan: Tensor, owned: Tensor, group: Tensor
) -> Result:
    untouched = torch.full((found.element_size(),), UNTOUCHED, dtype=torch.uint8)
    before = untouched.view(found.dtype).to(found.device)
    is_wrong = ((found != expected) & ~nan).where(owned, found != before)
    return compared(name, found, expected, is_wrong, group)


unreachable = nothing_unreachable


def tile(config: PermuteQuantizeConfig) -> tuple[int, int]:
    """Return rows and columns of what is told of wrong results together."""
    return config.tiling.rows, _WARP * config.tiling.vector


def make(
    config: PermuteQuantizeConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Integers have ties, zeros and whole blocks of them; the others all sizes from subnormal numbers
    on. Every fifth token has no place, and every layout rows of no group.
    """
    chance = torch.Generator(device).manual_seed(seed)
    pairs = sum(sizes.rows)
    tokens = -(-pairs * 5 // (4 * sizes.top_k)) + 2
    shape = (tokens, sizes.k)
    if is_exact:
        x = torch.randint(-12, 13, shape, generator=chance, device=device).float()
        keep = torch.randint(2, (tokens, sizes.k // _COLUMNS), generator=chance, device=device)
        x = x * keep.repeat_interleave(_COLUMNS, -1)
    else:
        powers = torch.randint(-140, 120, (tokens, 1), generator=chance, device=device)
        x = torch.randn(shape, generator=chance, device=device) * torch.exp2(powers.float())
    wanted = torch.arange(tokens * sizes.top_k, device=device)
    wanted = wanted[wanted // sizes.top_k % 5 != 4]
    order = torch.randperm(len(wanted), generator=chance, device=device)[:pairs]
    return solved(config, x.bfloat16(), wanted[order].int(), sizes, is_exact=is_exact)


def solved(
    config: PermuteQuantizeConfig, x: Tensor, pairs: Tensor, sizes: Sizes, *, is_exact: bool
) -> Solved:
    """Return the call for `x` and pairs in the order of the groups' rows."""
    is_sorting = config.walk is Walk.SORT
    if is_sorting:
        pairs = sorting.in_order(pairs, sizes.rows)
    form, places, groups = config.format, *_places(config.layout, sizes, len(x))
    permutation = torch.full(places.shape, -1, dtype=torch.int32, device=x.device)
    permutation[(places >= 0).to(x.device)] = pairs
    groups = groups.to(x.device)
    inverse = torch.full((len(x) * sizes.top_k,), -1, dtype=torch.int32, device=x.device)
    inverse[pairs.long()] = torch.arange(len(pairs), device=x.device, dtype=torch.int32)
    args = _given(config, x, len(groups))
    named: dict[str, Any] = {
        "permutation": permutation,
        "top_k": sizes.top_k,
        ARGUMENT[config.layout]: groups,
        "inverse": inverse.view(len(x), -1) if config.walk is Walk.SCATTER else None,
        "scale_granularity": _WORDS.get(form, str(form)),
        "q_dtype": torch.float4_e2m1fn_x2 if form is Format.MXFP4 else None,
        "scale": args,
        "power_of_two": config.power_of_two,
        "rounding": str(config.rounding),
    }
    rows: dict[str, Any] = {name: named.get(name) for name in ARGUMENT.values()}
    expected_q, expected_scale = reference.permute_quantize(
        *(x, permutation),
        top_k=sizes.top_k,
        **rows,
        form=form,
        scale=args,
        power_of_two=config.power_of_two,
        rounding=str(config.rounding),  # type: ignore[arg-type]
    )
    q, scale = new_tensors(Arguments(x=x, **(rows | named)))
    for each in (q, scale):
        if each is not None:
            _fill(each)
    owned = reference.owned_rows(permutation, *rows.values())
    index: tuple[Tensor, ...] = (permutation, groups)
    last: tuple[Any, ...] = (sizes.top_k,)
    order: dict[str, Tensor] = {}
    expected_order: dict[str, Tensor] = {}
    has_scale = None if scale is None else _owned_scales(form, scale, owned, groups, named)
    if config.walk is Walk.SCATTER:
        relay = (permutation, new_by_token(x)) if config.tiling.is_relayed else ()
        index, last = (named["inverse"],), relay
    elif is_sorting:
        ids = sorting.experts_of(pairs, sizes.rows, len(x), sizes.top_k)
        found, sorted_pairs = sorting.order_of(ids, len(groups))
        index, last = (ids,), (*found, sorting.FIRST)
        order, expected_order = found._asdict(), sorted_pairs._asdict()
        named = sorting.named_of(ids, len(groups), args, config)
    scales = [each for each in (scale, args) if each is not None]
    return Solved(
        tensors=(x, *index, q, *scales, *last),
        named=named,
        is_exact=is_exact,
        owned=owned,
        has_scale=has_scale,
        q=q,
        scale=scale,
        expected_q=expected_q,
        expected_scale=None if scale is None else expected_scale,
        order=order,
        expected_order=expected_order,
    )


def _fill(tensor: Tensor) -> None:
    """Let every byte of the memory of a tensor be `UNTOUCHED`, those between its rows too."""
    tensor.untyped_storage().fill_(UNTOUCHED)  # type: ignore[attr-defined]


def _given(config: PermuteQuantizeConfig, x: Tensor, groups: int) -> Tensor | None:
    """Return the scale that a caller gives; of those of NVFP4 some clip."""
    if config.format is Format.TENSOR:
        return torch.tensor([0.0117], device=x.device)
    if config.format is not Format.NVFP4:
        return None
    count = groups if config.layout is Layout.MASKED else 1
    largest = x.float().nan_to_num(0, 0, 0).abs().amax().clamp(1e-30, 1e30) / (6 * 448)
    return largest * torch.linspace(1.0, 0.1, count, device=x.device)


def _owned_scales(
    form: Format, scale: Tensor, owned: Tensor, groups: Tensor, named: dict[str, Any]
) -> Tensor:
    """Return which scales belong to a row of a group: bool of their shape."""
    if not form.has_atoms:
        return owned.reshape(*owned.shape, *[1] * (scale.ndim - owned.ndim)).expand(scale.shape)
    offs = named.get("offs")
    rows = Rows(tuple(owned.shape), 0 if offs is None else len(groups), offs)
    places = owned.to(torch.uint8).unsqueeze(-1).expand(*owned.shape, scale.shape[-2] * 4)
    return atoms.laid_out(places, rows).bool()


def _places(layout: Layout, sizes: Sizes, tokens: int) -> tuple[Tensor, Tensor]:
    """Return rows of the result, at least 0 where they count, and what says that they do."""
    rows = sizes.rows
    if layout is Layout.MASKED:
        row = torch.arange(max(*rows, 1, 1) + 3)
        counts = torch.tensor(rows, dtype=torch.int32)
        return torch.where(row < counts[:, None], row, -1), counts
    if layout is Layout.RAGGED:
        row = torch.arange(tokens * sizes.top_k)
        offs = torch.tensor([*accumulate(rows)], dtype=torch.int32)
        return torch.where(row < sum(rows), row, -1), offs
    indices: list[int] = []
    for group, count in enumerate(rows):
        indices += [group] * count + [-1] * (group % 3 + 1)
    found = torch.tensor(indices, dtype=torch.int32)
    return found, found
