# SPDX-License-Identifier: Apache-2.0
"""Maps of experts: balanced, chosen from by tokens, and what has to travel from one to another."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.parallel import ExpertMap, balance, share
from jitgen.parallel.moves import transfers
from jitgen.parallel.placed import PERIOD, Placed

EXPERTS, TOP_K, RANKS, REPLICAS, TOKENS = 256, 8, 4, 64, 512


class Alone:
    """What connects a rank to others, as far as choosing places asks."""

    group_name, can_mask, micro_batches, stream = "", False, 1, None
    quantises, flags_from = False, None

    def __init__(self, rank: int, ranks: int, max_tokens: int) -> None:
        self.rank, self.ranks, self.max_tokens = rank, ranks, max_tokens

    def dispatch(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, *_: object) -> Any:
        """Return what would travel."""
        return topk_ids

    combine = check = dispatch


def placed(expert_map: ExpertMap, rank: int, tokens: int = TOKENS, others: int = 0) -> Placed:
    alone: Any = Alone(rank, expert_map.ranks, tokens)
    return Placed(alone, expert_map, others, torch.device("cpu"))


def zipf(tokens: int, seed: int) -> Tensor:
    """Return the experts of tokens, different ones, by Zipf's law: 1, 1/2, 1/3 as likely."""
    chance = torch.Generator().manual_seed(seed)
    order = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(5))
    weights = 1 / (order + 1.0)
    return torch.multinomial(weights.expand(tokens, -1), TOP_K, generator=chance).int()


def rows(expert_map: ExpertMap, of_ranks: list[Tensor]) -> Tensor:
    """Return how many rows each rank computes of the tokens of all."""
    found = torch.cat([placed(expert_map, r).choose(ids) for r, ids in enumerate(of_ranks)])
    every = torch.bincount(found.flatten(), minlength=len(expert_map.placed))
    return torch.stack([every[[*expert_map.part(rank)]].sum() for rank in range(expert_map.ranks)])


def test_ranks_have_equally_many_rows_of_experts_that_zipfs_law_chooses() -> None:
    """4 ranks, a quarter more places: the slowest is within 10 % of the mean, and was far above."""
    seen = torch.bincount(zipf(4 * TOKENS, 0).flatten(), minlength=EXPERTS)
    of_ranks = [zipf(TOKENS, 1 + rank) for rank in range(RANKS)]  # tokens that nothing has counted
    before = rows(ExpertMap.plain(EXPERTS, RANKS), of_ranks)
    after = rows(balance(seen, RANKS, REPLICAS), of_ranks)

    assert before.sum() == after.sum() == RANKS * TOKENS * TOP_K
    assert before.max() > 1.1 * before.float().mean()
    assert after.max() <= 1.1 * after.float().mean()


@pytest.mark.parametrize("tokens", [1, 16])
def test_few_tokens_of_each_rank_take_turns_with_replicas(tokens: int) -> None:
    """Those of different ranks, too, which all have a first token."""
    expert_map = ExpertMap(experts=2, ranks=2, placed=(0, 1, 0, 1))
    found = [placed(expert_map, rank).choose(torch.zeros(tokens, 1).int()) for rank in range(2)]

    assert Counter(torch.cat(found).flatten().tolist()) == {0: tokens, 2: tokens}


def test_each_token_has_one_place_of_its_expert_and_other_numbers_have_none() -> None:
    """Experts without weights are numbered on behind the places."""
    expert_map = balance([9, 1, 4], ranks=2, replicas=1)
    ids = torch.randint(-1, 7, (PERIOD + 9, 4), generator=torch.Generator().manual_seed(0)).int()
    ids[0] = torch.tensor([2**31 - 1, -(2**31), 5, -1])
    found = placed(expert_map, 1, others=2).choose(ids)

    assert found[0].tolist() == [-1, -1, -1, -1]
    for expert, place in zip(ids.flatten().tolist(), found.flatten().tolist(), strict=True):
        if 0 <= expert < 3:
            assert expert_map.placed[place] == expert
        else:
            assert place == {3: 4, 4: 5}.get(expert, -1)


def test_another_map_is_one_write_into_the_same_tensor() -> None:
    first, second = (balance(each, ranks=2, replicas=1) for each in ([9, 1, 4], [1, 1, 9]))
    wire, ids = placed(first, 0), torch.tensor([[0], [1], [2]]).int()
    address = wire._table.data_ptr()
    wire.switch(second)

    assert wire._table.data_ptr() == address
    assert torch.equal(wire.choose(ids), placed(second, 0).choose(ids))


def test_a_balanced_map_has_what_was_asked_for() -> None:
    """The first one is the example of `balance`."""
    assert balance([70, 10, 10, 10], ranks=2, replicas=2).placed == (0, 1, 2, 0, 1, 3)
    for experts, ranks, replicas in ((1, 1, 0), (6, 2, 0), (5, 2, 3), (7, 3, 14), (256, 8, 32)):
        counts = [1000 // (1 + each) for each in range(experts)]
        found = balance(counts, ranks, replicas)
        sizes = [len(found.part(rank)) for rank in range(ranks)]

        assert found == balance(torch.tensor(counts), ranks, replicas)
        assert (len(found.placed), {*found.placed}) == (experts + replicas, {*range(experts)})
        assert max(sizes) - min(sizes) <= 1
        copies = [len(each) for each in found.places]
        assert all(one >= other for one, other in pairwise(copies))


@pytest.mark.parametrize(("experts", "ranks", "replicas"), [(6, 2, 0), (6, 2, 2), (9, 4, 7)])
def test_what_travels_makes_one_map_of_another(experts: int, ranks: int, replicas: int) -> None:
    """Also of the plain one, which has fewer places; nothing travels between equal maps."""
    chance = torch.Generator().manual_seed(0)
    plain = ExpertMap.plain(experts, ranks)
    old, new = (balance(torch.rand(experts, generator=chance), ranks, replicas) for _ in range(2))
    for before, after in ((old, new), (plain, new)):
        have = {
            after.part(rank)[number]: expert
            for rank in range(ranks)
            for number, expert in enumerate(before.of_rank(rank))
            if number < len(after.part(rank))
        }
        have |= {to: before.placed[source] for to, source in transfers(before, after)}

        assert tuple(have[place] for place in range(len(after.placed))) == after.placed
    assert transfers(old, old) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: balance([1, -1], 2), "counts: must be numbers of tokens"),
        (lambda: balance([1, 1], 2, 3), "replicas: must be 0 to 2"),
        (lambda: balance([1, 1], 3), "ranks: must be 1 to"),
        (lambda: ExpertMap(experts=2, ranks=1, placed=(0, 0)), "placed: must have every expert"),
        (lambda: ExpertMap(experts=1, ranks=1, placed=(0, 3)), "placed: must be experts from 0"),
    ],
)
def test_what_no_map_can_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_shares_are_the_plain_map() -> None:
    plain = ExpertMap.plain(10, 4)

    assert [(each.start, len(each)) for each in map(plain.part, range(4))] == [
        share(10, rank, 4) for rank in range(4)
    ]
