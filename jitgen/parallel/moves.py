# SPDX-License-Identifier: Apache-2.0
"""Sends weights between ranks, from the places of one expert map to those of another."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from jitgen.errors import InputError
from jitgen.parallel.expert_map import ExpertMap
from jitgen.parallel.memory import least
from jitgen.parallel.placed import Placed
from jitgen.parallel.wire import group_of


def transfers(old: ExpertMap, new: ExpertMap) -> list[tuple[int, int]]:
    """
    Return pairs (place of `new`, place of `old`) of which the first gets its weights from the
    second. The source is on the same rank if that rank holds the expert; otherwise the places of
    the expert take turns. If the n-th place of a rank has the same expert in both maps, it is left
    out.
    """
    places, owners = old.places, old.owners
    found = []
    for rank in range(new.ranks):
        kept = old.of_rank(rank)
        for number, (place, expert) in enumerate(
            zip(new.part(rank), new.of_rank(rank), strict=True)
        ):
            if kept[number : number + 1] != (expert,):
                near = [each for each in places[expert] if owners[each] == rank]
                sources = near or places[expert]
                found.append((place, sources[place % len(sources)]))
    return found


class Travelling:
    """
    A transfer of weights. All ranks of a group start it together; the constructor does not wait for
    it.

    Args:
        tensors: The weights of this rank in the places of `old`, by name.
        old: The map by which weights are placed now.
        new: The map by which they are placed afterwards.
        group: The ranks.

    Raises:
        InputError: Ranks have different maps.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], old: ExpertMap, new: ExpertMap, group: ProcessGroup
    ) -> None:
        rank = group.rank()
        device = next(iter(tensors.values())).device
        digest = zlib.crc32(repr((old, new)).encode())
        low, high = least([digest, -digest], group, device)
        if low != -high:
            raise InputError("expert_map", "must be the same on every rank")
        self._came: list[tuple[str, int, Tensor]] = []
        mine, gets = old.part(rank).start, new.part(rank).start
        steps = []
        for to, source in transfers(old, new):
            sender, taker = old.owners[source], new.owners[to]
            for name, tensor in tensors.items() if rank in (sender, taker) else ():
                tag = len(tensors) * to + [*tensors].index(name)
                if sender == taker:
                    self._came.append((name, to - gets, tensor[source - mine].clone()))
                elif rank == sender:
                    sent = _bytes(tensor[source - mine].contiguous())
                    steps.append(_step(dist.isend, sent, taker, group, tag))
                else:
                    taken = torch.empty_like(tensor[0], memory_format=torch.contiguous_format)
                    steps.append(_step(dist.irecv, _bytes(taken), sender, group, tag))
                    self._came.append((name, to - gets, taken))
        self._steps = steps  # whose memory has to stay
        self._work = dist.batch_isend_irecv(steps) if steps else []

    def has_come(self) -> bool:
        """Return whether everything that this rank sends and receives has been transferred."""
        return all(each.is_completed() for each in self._work)

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """
        Wait until all weights have arrived, and write them to their places, on the current stream.
        """
        for each in self._work:
            each.wait()
        with torch.no_grad():
            for name, place, values in self._came:
                tensors[name][place].copy_(values)
        self._came, self._steps, self._work = [], [], []


def spread(
    tensors: Mapping[str, Tensor], expert_map: ExpertMap, group: ProcessGroup
) -> dict[str, Tensor]:
    """
    Return the weights for the places of this rank. `tensors` has the weights of this rank's share
    of the experts in their order. All ranks call this.
    """
    plain = ExpertMap.plain(expert_map.experts, expert_map.ranks)
    travelling = Travelling(tensors, plain, expert_map, group)
    rank = group.rank()
    found = {
        name: each.new_empty((len(expert_map.part(rank)), *each.shape[1:]))
        for name, each in tensors.items()
    }
    both = zip(plain.of_rank(rank), expert_map.of_rank(rank), strict=False)
    for place, experts in enumerate(both):
        if experts[0] == experts[1]:
            for name, each in tensors.items():
                found[name][place] = each[place]
    travelling.put(found)
    return found


class Move:
    """
    A change of a layer to a new expert map, in progress: see `jitgen.MoELayer.move`.

    Args:
        placed: The layer's wire.
        expert_map: The new map.
        tensors: The weights of this rank by name; `finish` overwrites them.
        done: Called by `finish` at its end.
    """

    def __init__(
        self,
        placed: Placed,
        expert_map: ExpertMap,
        tensors: Mapping[str, Tensor],
        done: Callable[[], object],
    ) -> None:
        placed.require_like(expert_map)
        if placed.is_moving:
            raise InputError("expert_map", "must wait: finish() the layer's last move first")
        self._travelling = Travelling(
            tensors, placed.expert_map, expert_map, group_of(placed.group_name)
        )
        placed.is_moving = True
        self._placed, self._map, self._tensors, self._done = placed, expert_map, tensors, done

    def is_ready(self) -> bool:
        """
        Return whether everything that this rank sends and receives has been transferred, so that
        `finish` would not wait.
        """
        return self._travelling.has_come()

    def finish(self) -> None:
        """
        Make the layer use the new map from its next call on. Every rank calls this between the same
        two calls of the layer, on the stream of these calls; it waits for weights that have not
        arrived.
        """
        if not self._placed.is_moving:
            return
        self._travelling.put(self._tensors)
        self._placed.switch(self._map)
        self._placed.is_moving = False
        self._done()


def _bytes(values: Tensor) -> Tensor:
    return values.view(-1).view(torch.uint8)


def _step(
    call: Callable[..., dist.Work | None], values: Tensor, rank: int, group: ProcessGroup, tag: int
) -> dist.P2POp:
    return dist.P2POp(call, values, dist.get_global_rank(group, rank), group, tag)
