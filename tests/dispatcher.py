# SPDX-License-Identifier: Apache-2.0
"""What the tests of torch's dispatcher share: the calls, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.runtime.session import current
from tests.public_calls import CALLS, Call

every = pytest.mark.parametrize("call", CALLS, ids=str)
writes = pytest.mark.parametrize("call", [each for each in CALLS if each.written], ids=str)
is_warm = pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])


def parts(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [part for each in result or () for part in parts(each)]


def same(first: Any, second: Any) -> bool:
    """Say whether two results have the same bits, NaN and other fillings included."""
    pairs = zip(parts(first), parts(second), strict=True)
    return all(
        mine.shape == other.shape
        and torch.equal(
            mine.detach().flatten().clone().view(torch.uint8),
            other.detach().flatten().clone().view(torch.uint8),
        )
        for mine, other in pairs
    )


def right(call: Call) -> Any:
    return call.run(call.new())


@contextmanager
def ready(call: Call, is_warm: bool) -> Iterator[None]:
    """
    Before the with block, forget all calls; if `is_warm`, then make the call twice, so that it is
    remembered.
    """
    session = current.get()
    for remembered in (session.memo, session.families, session.chains):
        remembered.clear()
    if is_warm:
        for _ in range(2):
            call.run(call.new())
    yield


def refusal(run: Callable[[], Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        run()
    return caught.value


def right_or_refused(call: Call, run: Callable[[], Any], expected: Callable[[], Any]) -> None:
    """
    Require that `run` returns the right result, or raises InputError, or with torch's own
    operations RuntimeError.
    """
    errors = (InputError, RuntimeError) if call.by_torch else InputError
    try:
        found = run()
    except errors:
        return
    assert same(found, expected())


def is_float(tensor: Tensor) -> bool:
    return tensor.dtype in {torch.float32, torch.bfloat16}
