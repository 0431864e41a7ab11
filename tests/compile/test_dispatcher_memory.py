# SPDX-License-Identifier: Apache-2.0
"""Every public call, and the memory behind its tensors: what is written, shared, freed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.ops.dispatcher import do_overlap, reach
from jitgen.settings import settings
from tests import needs
from tests.dispatcher import (
    every,
    is_warm,
    ready,
    refusal,
    right,
    same,
    writes,
)
from tests.public_calls import Call

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.usefixtures("shared_cache", "spoilt_memory"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]


@writes
@is_warm
def test_what_is_written_has_another_version(call: Call, is_warm: bool) -> None:
    """Autograd did not see that a tensor it had saved was written, and gave wrong gradients."""
    tensors = call.new()
    before = {name: each._version for name, each in tensors.items()}
    with ready(call, is_warm):
        call.run(tensors)

    for name, each in tensors.items():
        assert (each._version > before[name]) is (name in call.written), name


@every
@pytest.mark.parametrize("size", [0, 16], ids=["freed", "made smaller"])
@pytest.mark.parametrize("is_looked_at", [False, True], ids=["new", "JITGEN_CHECK"])
def test_storage_behind_a_tensor(call: Call, size: int, is_looked_at: bool) -> None:
    """Kernels read, and wrote, what lay behind it."""
    for name, each in call.new().items():
        if each.nbytes <= size:
            continue
        tensors = call.new()
        with ready(call, is_looked_at), settings.scope(check=is_looked_at):
            tensors[name] = tensors[name].clone(memory_format=torch.preserve_format)
            tensors[name].untyped_storage().resize_(size)
            # torch itself refuses to make views of such a tensor.
            with pytest.raises((InputError, RuntimeError), match=r"freed or made|storage of size"):
                call.run(tensors)


def overlapping(out: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in one memory, with the values of `other`: out begins inside of it."""
    step = 16 if reach(other) > 16 else 0
    size = max(reach(other), step + reach(out)) + 64
    memory = torch.zeros(size, dtype=torch.uint8, device=other.device)

    def view(like: Tensor, start: int) -> Tensor:
        dense = memory[start : start + -(-reach(like) // 16) * 16].view(like.dtype)
        return dense.as_strided(like.shape, like.stride(), dense.storage_offset())

    mine = view(other, 0)
    mine.copy_(other)
    return view(out, step), mine


@writes
@pytest.mark.parametrize("is_looked_at", [False, True], ids=["new", "JITGEN_CHECK"])
def test_memory_that_is_read_while_it_is_written(call: Call, is_looked_at: bool) -> None:
    """Only the first operand was looked at; scales, groups and other results were not."""
    for name in call.written:
        for other in call.new():
            if other == name:
                continue
            tensors = call.new()
            tensors[name], tensors[other] = overlapping(tensors[name], tensors[other])
            assert do_overlap(tensors[name], tensors[other])
            with ready(call, is_looked_at), settings.scope(check=is_looked_at):
                error = refusal(lambda tensors=tensors: call.run(tensors))
            assert "must not share memory" in str(error), (name, other)


@writes
@is_warm
def test_a_tensor_that_is_written_and_read(call: Call, is_warm: bool) -> None:
    """The same tensor as argument and output, which a warm call sees as well."""
    for name in call.written:
        for other, each in call.new().items():
            mine = call.new()[name]
            is_alike = (each.shape, each.dtype) == (mine.shape, mine.dtype)
            if other == name or not is_alike:
                continue
            with ready(call, is_warm):
                tensors = call.new()
                tensors[name] = tensors[other]
                if other in call.in_place:
                    assert same(call.run(tensors), right(call))
                    continue
                refusal(lambda tensors=tensors: call.run(tensors))


@writes
@is_warm
def test_output_that_overlaps_itself(call: Call, is_warm: bool) -> None:
    for name in call.written:
        tensors = call.new()
        out = tensors[name]
        if out.dim() == 1:
            continue
        tensors[name] = out[:1].expand(out.shape)
        with ready(call, is_warm):
            error = refusal(lambda tensors=tensors: call.run(tensors))
        assert error.argument.startswith(name.partition("[")[0])
