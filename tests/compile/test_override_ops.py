# SPDX-License-Identifier: Apache-2.0
"""
Edited kernels of the operations around a grouped GEMM: each call takes them, and so does a graph.

See test_override.py for what holds whatever the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.config import Arch, Config
from jitgen.errors import InputError
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.runtime.spec import spec_of
from tests import needs
from tests.arguments import int32
from tests.compile.test_override import edited

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

BF16 = torch.bfloat16


class Edit(NamedTuple):
    """
    An edit, and a call that shows it.

    Attributes:
        kernel: Whose source is edited.
        function: What calls it.
        before, after: Text of the source.
        given: Arguments.
        place: Of the result that changes.
        changed: What it changes to.
    """

    kernel: str
    function: Callable[..., Any]
    before: str
    after: str
    given: dict[str, Any]
    place: int
    changed: Callable[[Tensor], Tensor]


def doubled(value: Tensor) -> Tensor:
    return value * 2


EDITS = {
    "route": Edit(
        kernel="route_softmax_f32_e32_cpu",
        function=jitgen.route,
        before="whole * choice.scale\n",
        after="whole * choice.scale * 2.0\n",
        given={"logits": torch.arange(60.0).view(5, 12) % 7, "top_k": 3},
        place=0,
        changed=doubled,
    ),
    "sort_pairs": Edit(
        kernel="route_given_e64_cpu",
        function=jitgen.sort_pairs,
        before="permutation[row] = Int32(-1)",
        after="permutation[row] = Int32(-2)",
        given={"topk_ids": int32(0, -1, 2, 1).view(2, 2), "experts": 3},
        place=1,
        changed=lambda value: value.where(value >= 0, -2),
    ),
    "permute_quantize": Edit(
        kernel="permute_quantize_ragged_block128_gather_cpu",
        function=jitgen.permute_quantize,
        before="scale[first // BLOCK] = block_scale\n",
        after="scale[first // BLOCK] = block_scale * 2.0\n",
        given={
            "x": torch.arange(512.0).view(2, 256).to(BF16),
            "permutation": int32(2, 0, 3, 1),
            "top_k": 2,
            "offs": int32(1, 4),
        },
        place=1,
        changed=doubled,
    ),
    "combine": Edit(
        kernel="combine_bf16_cpu",
        function=jitgen.combine,
        before="more = more * weight\n",
        after="more = more * weight * 2.0\n",
        given={
            "y": (torch.arange(64.0).view(4, 16) % 9).to(BF16),
            "inverse": int32(2, 0, 3, 1).view(2, 2),
            "topk_weights": torch.tensor([[1.0, 0.5], [0.25, 1.0]]),
        },
        place=0,
        changed=doubled,
    ),
    "grouped_gemm_wgrad": Edit(
        kernel="grouped_gemm_wgrad_ragged_f32_f32_t64x128x128_c1x1_cpu",
        function=jitgen.grouped_gemm_wgrad,
        before="= encode(tile[n, k])",
        after="= encode(tile[n, k] * 2.0)",
        given={
            "dy": torch.arange(48.0).view(6, 8) % 5,
            "a": torch.arange(72.0).view(6, 12) % 7,
            "offs": int32(2, 6),
            "out_dtype": torch.float32,
        },
        place=0,
        changed=doubled,
    ),
}

each_edit = pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)


def read(edit: Edit, folder: Path) -> Override:
    config, _ = Config.parse(edit.kernel)
    return edited(config, folder / "my.py", edit.before, edit.after)


def results(edit: Edit, config: Config | Override | None, **more: Any) -> tuple[Tensor, ...]:
    found = edit.function(**edit.given, config=config, **more)
    return (found,) if isinstance(found, Tensor) else tuple(found)


def shows(edit: Edit, found: tuple[Tensor, ...], original: tuple[Tensor, ...]) -> bool:
    """Say whether `found` is the original's but for the edit, which changes something."""
    expected = list(original)
    expected[edit.place] = edit.changed(original[edit.place])
    assert not torch.equal(expected[edit.place], original[edit.place])
    return all(
        torch.equal(a.view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip((each.contiguous() for each in found), expected, strict=True)
    )


@each_edit
def test_calls_take_it(edit: Edit, tmp_path: Path) -> None:
    """In turn with the original, cold and warm, into new tensors and into those of a caller."""
    mine = read(edit, tmp_path)
    original = results(edit, mine.config)
    for _ in range(2):
        assert shows(edit, results(edit, mine), original)
        assert all(map(torch.equal, results(edit, mine.config), original))
    keys = {kernel.key for kernel in current.get().loader.loaded()}

    assert keys == {mine.spec.key, spec_of(mine.config, Arch.CPU).key}


@each_edit
def test_its_object_outlives_the_memo(edit: Edit, tmp_path: Path) -> None:
    """Launches are remembered by the identity of what was asked for: it must not be reused."""
    mine = read(edit, tmp_path)
    path, plain = mine.path, mine.config
    original = results(edit, plain)
    for _ in range(20):
        assert shows(edit, results(edit, jitgen.override(path)), original)
        again = results(edit, type(plain).from_json(plain.to_json()))
        assert all(map(torch.equal, again, original))


@pytest.mark.nightly
@each_edit
def test_graphs(edit: Edit, tmp_path: Path) -> None:
    """One names it, with the digest of its text, and runs it; torch.compile breaks nowhere."""
    from torch.fx.experimental.proxy_tensor import make_fx

    mine = read(edit, tmp_path)
    original = results(edit, mine.config)
    tensors = {name: each for name, each in edit.given.items() if isinstance(each, Tensor)}

    def call(*given: Tensor) -> tuple[Tensor, ...]:
        return results(edit._replace(given=edit.given | dict(zip(tensors, given))), mine)  # noqa: B905

    graph = make_fx(call)(*tensors.values())
    compiled = torch.compile(call, fullgraph=True)

    assert f"{edit.kernel}@" in graph.code
    assert shows(edit, graph(*tensors.values()), original)
    assert shows(edit, compiled(*tensors.values()), original)


@each_edit
def test_what_is_not_for_it(edit: Edit, tmp_path: Path) -> None:
    other = EDITS["combine" if edit.function is not jitgen.combine else "route"]
    theirs = read(other, tmp_path)
    kind = type(Config.parse(edit.kernel)[0]).__name__

    got = type(theirs.config).__name__
    with pytest.raises(InputError, match=rf"must be a {kind} \(got {got} in .*my\.py\)"):
        results(edit, theirs)
    with pytest.raises(InputError, match=r"jitgen\.override\('my\.py'\)"):
        results(edit, "my.py")  # type: ignore[arg-type]
