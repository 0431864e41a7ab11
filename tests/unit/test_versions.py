# SPDX-License-Identifier: Apache-2.0
"""Whether what was made of tensors still stands: every way in which they can have changed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils import swap_tensors

from jitgen.ops.versions import Places, Versions


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.arange(16.0).view(4, 4), requires_grad=False)


def resized(weight: Tensor) -> None:
    """Give the memory back and take other, as sharded weights do between uses."""
    other = torch.empty(1 << 16)  # so that it is not the same again
    storage = weight.untyped_storage()
    size = storage.size()
    storage.resize_(0)
    del other
    storage.resize_(size + (1 << 20))


def spread(weight: Tensor) -> None:
    weight.data = weight.data.t()


MOVED: dict[str, Callable[[Any], Any]] = {
    "data": lambda weight: setattr(weight, "data", weight.data.clone()),
    "transposed in place": spread,
    "of another type": lambda weight: setattr(weight, "data", weight.data.view(torch.int32)),
    "of other sizes": lambda weight: setattr(weight, "data", weight.data[:2]),
    "set": lambda weight: weight.set_(torch.zeros(4, 4)),
    "resized": resized,
    "freed and taken again": lambda weight: (
        setattr(weight, "data", torch.empty(0)),
        setattr(weight, "data", torch.zeros(4, 4)),
    ),
}
"""Other memory, or the same seen otherwise."""


def in_inference(weight: Tensor) -> None:
    with torch.inference_mode():
        weight.mul_(3)


def stepped(weight: nn.Parameter) -> None:
    weight.requires_grad_()
    weight.grad = torch.ones(4, 4)
    torch.optim.AdamW([weight]).step()


def loaded(weight: nn.Parameter) -> None:
    holder = nn.Module()
    holder.weight = weight
    holder.load_state_dict({"weight": torch.zeros(4, 4)})


WRITTEN: dict[str, Callable[[Any], Any]] = {
    "copy_": lambda weight: weight.copy_(torch.zeros(4, 4)),
    "add_": lambda weight: weight.add_(1),
    "a slice": lambda weight: weight[1].mul_(2),
    "through detach": lambda weight: weight.detach().zero_(),
    "under inference mode": in_inference,
    "by an optimiser": stepped,
    "by copying a list": lambda weight: torch._foreach_copy_([weight], [torch.zeros(4, 4)]),
    "loaded": loaded,
}
"""Other values in the same memory, which torch counts."""


@pytest.mark.parametrize("change", MOVED.values(), ids=MOVED)
def test_other_memory_is_seen(change: Callable[[Any], Any]) -> None:
    weight, other = parameter(), parameter()
    kept = weight.detach()  # as the owner of a place does
    places, versions = Places((weight, None)), Versions.of((weight, other))
    assert versions is not None
    assert places.hold((weight, None))
    assert versions.hold((weight, other))
    with torch.no_grad():
        change(weight)

    if change is not resized:  # which is the same memory to its users
        assert not places.hold((weight, None))
    assert not versions.hold((weight, other))
    assert kept.shape == (4, 4)


@pytest.mark.parametrize("change", WRITTEN.values(), ids=WRITTEN)
def test_other_values_are_seen(change: Callable[[Any], Any]) -> None:
    """What refers to the memory has them; a copy has not."""
    weight = parameter()
    places, versions = Places((weight,)), Versions.of((weight,))
    assert versions is not None
    with torch.no_grad():
        change(weight)

    assert places.hold((weight,))
    assert not versions.hold((weight,))


def test_swapped_tensors_are_seen() -> None:
    """By tensors that refer to them; torch refuses to swap those of which a copy is kept."""
    weight = parameter()
    places = Places((weight,))
    swap_tensors(weight, parameter())
    assert not places.hold((weight,))
    versions = Versions.of((weight,))
    with pytest.raises(RuntimeError, match="weakref"):
        swap_tensors(weight, parameter())
    assert versions is not None


def test_other_tensors_are_seen() -> None:
    """More, fewer, in another order, or none where there was one."""
    first, second = parameter(), parameter()
    versions = Versions.of((first, second))
    assert versions is not None
    assert not versions.hold((second, first))
    assert not versions.hold((first,))
    assert not Places((first, None)).hold((first, second))
    assert not Places((first, second)).hold((first, None))
    assert not Places((first,)).hold((first, second))


def test_another_object_over_the_same_memory_counts_its_own_writes() -> None:
    """So that it is not a counted one's, though nothing can be told from it."""
    weight = parameter()
    versions = Versions.of((weight,))
    assert versions is not None

    assert not versions.hold((nn.Parameter(weight.data),))


def test_what_is_gone_matches_nothing() -> None:
    """Its number and its memory may be another's next."""
    weight = parameter()
    places = Places((weight,))
    versions = Versions.of((weight,))
    assert versions is not None
    address = weight.data_ptr()
    del weight
    gc.collect()
    for _ in range(100):
        other = parameter()
        assert not versions.hold((other,))
        if other.data_ptr() == address:
            break
    assert places is not None


def test_nothing_is_held() -> None:
    """Neither a tensor nor its memory."""
    weight = parameter()
    versions = Versions.of((weight,))
    memory = versions._marks[0][2]  # type: ignore[union-attr]
    del weight
    gc.collect()

    assert versions._marks[0][0]() is None  # type: ignore[union-attr]
    assert memory.expired()


def test_where_torch_does_not_count_nothing_may_be_kept() -> None:
    with torch.inference_mode():
        made_there = torch.zeros(4, 4)
    with FakeTensorMode():
        fake = torch.zeros(4, 4)

    assert Versions.of((made_there,)) is None
    assert Versions.of((parameter(), made_there)) is None
    assert Versions.of((fake,)) is None
