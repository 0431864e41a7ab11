# SPDX-License-Identifier: Apache-2.0
"""A torch module whose tensors are the weights of a chain of launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from jitgen.errors import InputError
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.gates import require_gates
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.tensors import require


class BoundExperts(nn.Module):
    """
    A module that has the weights of a chain as its buffers, or as its parameters if they are given
    as ``nn.Parameter``. Each call uses the tensors that the module has at that time.

    Args:
        chain: The launches, with the first weights.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        for name, tensor in chain.weights.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        self._made = chain
        self.register_load_state_dict_post_hook(look_again)  # type: ignore[no-untyped-call]

    @property
    def weights(self) -> ExpertWeights:
        """The present weights of the layer's experts on this rank."""
        return self._chain.weights

    @property
    def _chain(self) -> Chain:
        """The chain of launches with the present weights."""
        made, buffers, parameters = self._made, self._buffers, self._parameters
        for name, tensor in made.weights.tensors.items():
            if buffers.get(name) is not tensor and parameters.get(name) is not tensor:
                made = self._made = self._bind()
                break
        return made

    def chain_of(self, tensors: Sequence[Tensor]) -> Chain:
        """Return the chain with other values of its weights, given in the order of their names."""
        made = self._chain
        named = dict(zip(made.weights.tensors, tensors, strict=True))
        if all(named[name] is each for name, each in made.weights.tensors.items()):
            return made
        return replace(made, weights=made.weights.of(named))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """
        Move the weights; a change of their type is refused, because it would change their values.
        """
        made = self._chain
        for name, tensor in made.weights.tensors.items():
            if fn(tensor.new_empty(0)).dtype is not tensor.dtype:
                raise InputError(
                    name,
                    f"must stay {tensor.dtype}: a layer of experts can be moved, and not be cast; "
                    "build it from other weights",
                )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._made = replace(made, weights=made.weights.of(self._tensors(made.weights)))
        return self

    def _bind(self) -> Chain:
        """
        Return the chain with the present weights.

        Raises:
            InputError: The weights do not fit this layer.
        """
        made = self._made
        weights = made.weights.replaced(self._tensors(made.weights))
        require_weights(made.config, weights)
        return replace(made, weights=weights)

    def _tensors(self, like: ExpertWeights) -> dict[str, Tensor]:
        """Return the tensors of the module that have the names of those of `like`."""
        found = {name: getattr(self, name, None) for name in like.tensors}
        for name, tensor in found.items():
            require(name, tensor)
        return found  # type: ignore[return-value]


def require_weights(config: MoEConfig, weights: ExpertWeights) -> None:
    """Require weights with the sizes, gates and numbers of a layer's config."""
    have = (weights.groups, weights.hidden, weights.intermediate)
    wanted = (config.groups, config.hidden, config.intermediate)
    if have != wanted:
        raise InputError(
            "weights", f"must have G, H, I = {wanted}, as the config says (got {have})"
        )
    require_gates(config, weights)


def look_again(layer: BoundExperts, *_: object) -> None:
    """Make a layer read newly loaded values now, instead of in the middle of its next call."""
    layer._made = layer._bind()
