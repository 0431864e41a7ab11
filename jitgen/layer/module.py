# SPDX-License-Identifier: Apache-2.0
"""A layer of experts as a module of torch's, with the memory and the kernels that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from jitgen.config import Arch, Config
from jitgen.errors import InputError
from jitgen.layer import plan as plans
from jitgen.layer.call import run
from jitgen.layer.chain import Chain, require_gates
from jitgen.layer.config import MoEConfig
from jitgen.layer.experts import run_experts
from jitgen.layer.lora import ExpertLora, require_fit
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Workspace
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.tensors import require
from jitgen.plans.plan import Plan, configs
from jitgen.plans.prewarm import PrewarmReport, prewarm
from jitgen.support.moved import with_new_names

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from jitgen.parallel import ExpertMap, Wire
    from jitgen.parallel.moves import Move


class MoELayer(nn.Module):
    """
    Experts of a layer, or the share of them that a rank has: `jitgen.moe` with weights of its own.

    The weights are buffers, or parameters where they are given as ``nn.Parameter``, so they move
    with the module and are in its state. Each call computes with those that the module has then,
    however they came there: an assignment, `load_state_dict`, `torch.func.functional_call`, FSDP.
    The memory between the launches is made at the first call and kept; several layers may share
    it. Calls that autograd needs a gradient of ask torch's allocator instead.

    Safe to call from any thread, on any stream, and while a CUDA graph of it replays: see
    `jitgen.Workspace`.

    Args:
        config: What the layer is.
        weights: Its experts on this rank.
        max_tokens: Most tokens of a call that its memory is planned for; more of them go through in
            several passes. None: no memory is kept, and torch's allocator is asked each time.
        workspace: Memory of another layer to share, in the place of its own.
        group: Ranks that share the layer, of which this one has `weights`: a group of
            torch.distributed, or what `jitgen.parallel.connect` returned, which layers on one
            stream may share. A config of the whole layer becomes this rank's share of its experts,
            `jitgen.parallel.share`. Every rank makes the layer, and calls it as often;
            `max_tokens`, which is needed, is of each rank, and the same on all of them.
        expert_map: With a group: which rank has which experts, some of them several times, as
            `jitgen.parallel.balance` proposes; the same on every rank. `weights` are this rank's
            share all the same: ranks send each other what their places need.
        lora: Low-rank adapters of the experts, for calls with `adapter_ids`. They move with the
            module and are not in its state; a server may assign others to `lora`, or write to their
            tensors in place.
        one_launch: Whether calls of at most 8 tokens take one launch in the place of the chain,
            where there is such a kernel: False, never; True, always; None, with at most 4 tokens,
            with which it was faster wherever it was measured. With True or None no two of these
            launches may run on a GPU at the same time, on two streams, for example: their CTAs
            wait for each other. Layers that share a workspace share what it needs.

    Raises:
        InputError: The weights do not fit the config.

    Example::

        layer = jitgen.MoELayer.from_checkpoint(
            "DeepSeek-V3", "model.layers.3.mlp", top_k=8, device="cuda", max_tokens=512
        )
        out = layer(x, topk_weights, topk_ids)
    """

    def __init__(
        self,
        config: MoEConfig,
        weights: ExpertWeights,
        *,
        max_tokens: int | None = None,
        workspace: Workspace | None = None,
        group: ProcessGroup | Wire | None = None,
        expert_map: ExpertMap | None = None,
        lora: ExpertLora | None = None,
        one_launch: bool | None = False,
    ) -> None:
        super().__init__()
        for name, given, kind in (
            ("config", config, MoEConfig),
            ("weights", weights, ExpertWeights),
            ("workspace", workspace, Workspace | None),
        ):
            if not isinstance(given, kind):
                wanted_type = getattr(kind, "__name__", "Workspace, or None")
                raise InputError(
                    name, f"must be a jitgen.{wanted_type} (got {type(given).__name__})"
                )
        plans.require_tokens(max_tokens)
        self._wire: Wire | None = None
        if group is not None:
            from jitgen.layer import ranks

            if lora is not None:
                raise InputError("lora", "must be None with a group: adapters stay on a rank")
            of_rank = ranks.shared(group, config, weights, max_tokens, expert_map)
            self._wire, config, weights = of_rank
        elif expert_map is not None:
            raise InputError("expert_map", "must be None without a group")
        _require_fit(config, weights)
        if lora is not None:
            require_fit(lora, config, weights)
        self.lora = lora
        self.config = config
        self.max_tokens = max_tokens
        self._workspace = workspace
        for name, tensor in weights.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        _require_one_launch(one_launch, has_memory=max_tokens is not None or workspace is not None)
        if one_launch is not False and group is not None:
            raise InputError("one_launch", "must be False with a group: ranks wait for each other")
        self._made = Chain(config=config, weights=weights, one_launch=one_launch)
        self._number = None if self._wire is None else ranks.numbered(self)
        self.register_load_state_dict_post_hook(_look_again)  # type: ignore[no-untyped-call]

    @property
    def weights(self) -> ExpertWeights:
        """Its experts, where they are now."""
        return self._chain.weights

    @property
    def _chain(self) -> Chain:
        """The chain for the weights as they are now."""
        made, buffers, parameters = self._made, self._buffers, self._parameters
        for name, tensor in made.weights.tensors.items():
            if buffers.get(name) is not tensor and parameters.get(name) is not tensor:
                made = self._made = self._bind()
                break
        return made

    @property
    def workspace(self) -> Workspace | None:
        """The memory between its launches; None where none is kept."""
        if self._workspace is None and self.max_tokens is not None:
            most = self.max_tokens * self.num_ranks
            self._workspace = Workspace.of(self.config, self.weights, most)
        return self._workspace

    @property
    def wire(self) -> Wire | None:
        """What it reaches the other ranks by; None if no others share it."""
        return getattr(self._wire, "wire", self._wire)

    @property
    def expert_map(self) -> ExpertMap | None:
        """Which ranks have which experts; None where each has its share."""
        return getattr(self._wire, "expert_map", None)

    def move(self, expert_map: ExpertMap) -> Move:
        """
        Begin to bring experts to the places of another map, of the same sizes, while calls go on
        with the old one; all ranks call it between the same two calls. ``finish()`` of what it
        returns lets the next call have the new map, also one that a CUDA graph has captured.

        Until then a second copy of the weights that this rank gets takes memory.

        Raises:
            InputError: The layer was made without a map, the new one has other sizes or is not the
                same on every rank, or the last move is not finished.
        """
        from jitgen.layer import ranks

        return ranks.move(self._wire, expert_map, self.weights, partial(_look_again, self))

    @property
    def num_ranks(self) -> int:
        """How many ranks share it."""
        return 1 if self._wire is None else self._wire.ranks

    def forward(  # noqa: PLR0913  # each is one thing to say
        self,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        *,
        sorting: Routing | Sorting | None = None,
        shared: Tensor | None = None,
        out: Tensor | None = None,
        shared_weights: Tensor | None = None,
        rank_tokens: int | None = None,
        adapter_ids: Tensor | None = None,
    ) -> Tensor:
        """
        Send every token through its experts: see `jitgen.moe`.

        Args:
            x: (T, H) bfloat16.
            topk_weights: (T, k) float32.
            topk_ids: (T, k) int32 or int64.
            sorting: What `jitgen.route` gave for them, which saves the launch that sorts.
            shared: (T, H) bfloat16, added at the end.
            out: (T, H) bfloat16: where the result goes.
            shared_weights: (T,) float32, what rows of `shared` are multiplied with: its gate.
            rank_tokens: With a group: the most tokens of any rank in this call, the same on all of
                them; None: `max_tokens`.
            adapter_ids: (T,) int32 or int64: which of the layer's adapters each token has; -1 for
                none. None: no token has one.
        """
        workspace = None if is_compiling() else self.workspace
        if self._wire is not None:
            if adapter_ids is not None:
                raise InputError(
                    "adapter_ids", "must be None with a group: adapters stay on a rank"
                )
            if sorting is not None:
                raise InputError("sorting", "must be None with a group: tokens of all are sorted")
            from jitgen.layer import ranks

            of_rank = (x, topk_weights, topk_ids, shared, out, workspace, shared_weights)
            return ranks.run_on_ranks(self._chain, self._wire, *of_rank, rank_tokens, self._number)
        if rank_tokens is not None:
            raise InputError("rank_tokens", "must be None without a group")
        if self._made.one_launch is not False and workspace is not None:
            workspace.make_exchange()
        given = (x, topk_weights, topk_ids, shared, out, workspace, sorting)
        more = {"shared_weights": shared_weights, "lora": self.lora, "adapter_ids": adapter_ids}
        return run(self._chain, *given, **more)  # type: ignore[arg-type]

    def experts(
        self,
        x: Tensor,
        masked_m: Tensor,
        *,
        x_scale: Tensor | None = None,
        expected_m: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """
        Run every expert over its own matrix of tokens, between the dispatch and the combine of
        expert parallelism: see `jitgen.moe_experts`.

        The layer's memory serves where it has room for G * M rows; else torch's allocator is asked.

        Args:
            x: (G, M, H) bfloat16, or float8_e4m3fn with `x_scale`.
            masked_m: (G,) int32: rows of each matrix that are tokens.
            x_scale: (G, M, ceil(H / 128)) float32, or (G, M) for activations of rows.
            expected_m: How many rows an expert is expected to have; None: all.
            out: (G, M, H) bfloat16: where the result goes.

        Returns:
            (G, M, H) bfloat16; rows from ``masked_m[g]`` on are not written.
        """
        workspace = None if is_compiling() else self.workspace
        if workspace is not None and _is_too_large(x, workspace):
            workspace = None
        return run_experts(self._chain, x, masked_m, x_scale, expected_m, out, workspace)

    def plan(
        self,
        max_tokens: int | None = None,
        arch: Arch | str | None = None,
        *,
        name: str = "moe-layer",
        masked: int | None = None,
        trains: bool = False,
        num_ranks: int | None = None,
    ) -> Plan:
        """
        Return every kernel that the layer can ask for, as a plan for `jitgen.prewarm`.

        Args:
            max_tokens: Most tokens of a call; None: those that memory is planned for, or a chunk.
            arch: The target; None: the one that this process would use.
            name: What the plan is called.
            masked: Most rows of an expert, M, that `experts` is called with, whose kernels are in
                the plan, too; None: those of `forward` alone.
            trains: Whether it is for calls that need gradients: their kernels, forwards and
                backwards.
            num_ranks: Ranks that will share it by a group, each with `max_tokens`, where it was
                made without one, as on the device ``meta``; None: those of its group.
        """
        if num_ranks is None and self._wire is not None:
            num_ranks = self._wire.ranks
        tokens = self.max_tokens if max_tokens is None else max_tokens
        return plans.of(
            self._chain,
            tokens,
            arch,
            name=name,
            masked=masked,
            trains=trains,
            num_ranks=num_ranks,
            can_mask=self._wire is not None and self._wire.can_mask,
            lora=self.lora,
        )

    def problems(
        self,
        arch: Arch | str | None = None,
        max_tokens: int | None = None,
        *,
        masked: int | None = None,
    ) -> Iterator[Any]:
        """Yield the problems of its plan: one for each bucket of the selector."""
        yield from self.plan(max_tokens, arch, masked=masked).problems(plans.target(arch))

    def configs(
        self,
        arch: Arch | str | None = None,
        max_tokens: int | None = None,
        *,
        masked: int | None = None,
    ) -> tuple[Config, ...]:
        """Return the configs of the kernels of the layer's plan; arguments are those of `plan`."""
        return configs(self.plan(max_tokens, arch, masked=masked), plans.target(arch))

    def prewarm(
        self,
        arch: Arch | str | None = None,
        max_tokens: int | None = None,
        *,
        masked: int | None = None,
        **options: Any,
    ) -> PrewarmReport:
        """
        Bring every kernel of the layer's plan into the store.

        Args:
            arch: As of `plan`.
            max_tokens: As of `plan`.
            masked: As of `plan`.
            options: Other arguments of `jitgen.prewarm`.
        """
        return prewarm(
            self.plan(max_tokens, arch, masked=masked), arch=plans.target(arch), **options
        )

    @classmethod
    def from_checkpoint(  # noqa: PLR0913  # each is one thing to say
        cls,
        source: str | Path | Mapping[str, Tensor],
        prefix: str | None = None,
        *,
        layer: int | None = None,
        top_k: int | None = None,
        config: str | Path | Mapping[str, Any] | None = None,
        family: str | None = None,
        first_expert: int = 0,
        local_experts: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        device: str | torch.device = "cpu",
        activation_format: str | None = None,
        dequantize: bool = False,
        ignore_input_scales: bool = False,
        activation: str | None = None,
        interleaved: bool | None = None,
        swiglu_limit: float | None = None,
        swiglu_alpha: float | None = None,
        swiglu_beta: float | None = None,
        gate_softcap: float | None = None,
        up_softcap: float | None = None,
        chunk_tokens: int | None = None,
        min_latency: bool | None = None,
        numerics: str | None = None,
        max_tokens: int | None = None,
        workspace: Workspace | None = None,
        progress: Callable[[int, int], object] | None = None,
        **old: Any,
    ) -> Self:
        """
        Read one layer of a checkpoint; what is not understood of it is refused by its name.

        Refused are tensors below the prefix that are neither read nor known to be others'; types of
        weights, scales and biases that would have to be guessed, and scales that are none (a NaN,
        an infinity, less than zero, a zero over other values); what the model's ``config.json``
        says and no layer computes, or the tensors or the call contradict. docs/moe-layer.md has the
        lists.

        Args:
            source: A folder or file of safetensors, or tensors by their names.
            prefix: What the names of the layer's tensors begin with, without the last dot, such as
                ``model.layers.3.mlp``. None: that of the experts of `layer`.
            layer: Number of a layer, in the place of a prefix.
            top_k: Experts of a token; None: as the model's config says, which tensors do not.
            config: The model's config: a mapping, or the path of a ``config.json`` or its folder.
                None: the one beside the files, if there is one. ``{}``: none, the tensors alone.
            family: One of `jitgen.layer.checkpoints.FAMILIES`; None: found by the names.
            first_expert: The first expert of this rank.
            local_experts: How many follow it here; None: all. Others are not read.
            rank: Which of `ranks` this is.
            ranks: How many ranks share the columns I of every expert, in equal parts; their results
                must be added up. Where a part begins or ends within a block of scales, or is no
                size of a kernel, the layer has zeros beside it.
            device: Where the weights go.
            activation_format: As for `jitgen.moe`.
            dequantize: Read weights of every encoding as bfloat16. INT4 in groups other than 32 and
                128 needs it.
            ignore_input_scales: Leave out static scales of tokens, which are quantised with scales
                that are found for them.
            activation: As for `jitgen.MoEConfig`, and so are those below; None: as the model's
                config says, else as the family has it.
            interleaved: Whether rows of gates and ups take turns; None: as the family has it.
            swiglu_limit: As for `jitgen.silu_mul_quantize`.
            swiglu_alpha: Likewise.
            swiglu_beta: Likewise.
            gate_softcap: Likewise.
            up_softcap: Likewise.
            chunk_tokens: Tokens of a pass.
            min_latency: Whether few rows take the kernel of least latency.
            numerics: ``fast`` or ``invariant``.
            max_tokens: As for the constructor.
            workspace: Likewise.
            progress: Called with the number of experts that were read, and of all that are.
            **old: As for `jitgen.moe`.

        Raises:
            InputError: The checkpoint has no such layer, or something is refused.
            ToolchainError: safetensors is not installed.
            ResourceError: There is no memory for the weights.
            OSError: A file cannot be read.
        """
        if old:
            named = with_new_names(cls.from_checkpoint, locals())
            return cls.from_checkpoint(**named)
        from jitgen.layer import checkpoints

        found, weights = checkpoints.load(
            source,
            prefix,
            layer=layer,
            top_k=top_k,
            config=config,
            family=family,
            first_expert=first_expert,
            local_experts=local_experts,
            rank=rank,
            ranks=ranks,
            device=device,
            activation_format=activation_format,
            dequantize=dequantize,
            ignore_input_scales=ignore_input_scales,
            progress=progress,
            activation=activation,
            interleaved=interleaved,
            swiglu_limit=swiglu_limit,
            swiglu_alpha=swiglu_alpha,
            swiglu_beta=swiglu_beta,
            gate_softcap=gate_softcap,
            up_softcap=up_softcap,
            chunk_tokens=chunk_tokens,
            min_latency=min_latency,
            numerics=numerics,
        )
        return cls(found, weights, max_tokens=max_tokens, workspace=workspace)

    @classmethod
    def from_config(  # noqa: PLR0913  # each is one thing to say
        cls,
        config: str | Path | Mapping[str, Any],
        *,
        layer: int | None = None,
        first_expert: int = 0,
        local_experts: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        device: str | torch.device = "cpu",
        activation_format: str | None = None,
        dequantize: bool = False,
        activation: str | None = None,
        interleaved: bool | None = None,
        swiglu_limit: float | None = None,
        swiglu_alpha: float | None = None,
        swiglu_beta: float | None = None,
        gate_softcap: float | None = None,
        up_softcap: float | None = None,
        chunk_tokens: int | None = None,
        min_latency: bool | None = None,
        numerics: str | None = None,
        max_tokens: int | None = None,
        workspace: Workspace | None = None,
    ) -> Self:
        """
        Return the layer that a checkpoint of a model would give, with weights of zeros.

        On the device ``meta`` it has no memory, and its `plan` is that of the model.

        Args:
            config: The model's config: a mapping, or the path of a ``config.json`` or its folder.
            layer: Number of the layer, which must have experts.
            first_expert: As for `from_checkpoint`, and so are those below.
            local_experts: How many experts follow it here.
            rank: Which of `ranks` this is.
            ranks: How many ranks share the columns of every expert.
            device: Where the weights go.
            activation_format: As for `jitgen.moe`.
            dequantize: Whether weights are bfloat16 instead of as the model stores them.
            activation: As for `jitgen.MoEConfig`.
            interleaved: Whether rows of gates and ups take turns.
            swiglu_limit: As for `jitgen.silu_mul_quantize`.
            swiglu_alpha: Likewise.
            swiglu_beta: Likewise.
            gate_softcap: Likewise.
            up_softcap: Likewise.
            chunk_tokens: Tokens of a pass.
            min_latency: Whether few rows take the kernel of least latency.
            numerics: ``fast`` or ``invariant``.
            max_tokens: As for the constructor.
            workspace: Likewise.

        Raises:
            InputError: The config says too little, or what no layer computes.
            OSError: The file cannot be read.
        """
        from jitgen.layer import checkpoints

        found, weights = checkpoints.of_config(
            config,
            layer=layer,
            first_expert=first_expert,
            local_experts=local_experts,
            rank=rank,
            ranks=ranks,
            device=device,
            activation_format=activation_format,
            dequantize=dequantize,
            activation=activation,
            interleaved=interleaved,
            swiglu_limit=swiglu_limit,
            swiglu_alpha=swiglu_alpha,
            swiglu_beta=swiglu_beta,
            gate_softcap=gate_softcap,
            up_softcap=up_softcap,
            chunk_tokens=chunk_tokens,
            min_latency=min_latency,
            numerics=numerics,
        )
        return cls(found, weights, max_tokens=max_tokens, workspace=workspace)

    def extra_repr(self) -> str:
        """Return the text of this layer inside ``repr``."""
        config, weights = self.config, self.weights
        kind = weights.w13.dtype if isinstance(weights.w13, Tensor) else weights.w13.layout
        return (
            f"hidden={config.hidden}, intermediate={config.intermediate}, "
            f"experts={config.groups} of {config.experts}, top_k={config.top_k}, "
            f"weights={str(kind).removeprefix('torch.')}, "
            f"activation_format={weights.activation_format}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the weights; refuse to change their type, which would change their values."""
        made = self._chain
        for name, tensor in made.weights.tensors.items():
            if fn(tensor.new_empty(0)).dtype is not tensor.dtype:
                raise InputError(
                    name,
                    f"must stay {tensor.dtype}: a layer of experts can be moved, and not be cast; "
                    "build it from other weights",
                )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.lora is not None:
            self.lora = self.lora.moved(fn)
        self._workspace = None
        self._made = replace(made, weights=made.weights.of(self._tensors(made.weights)))
        return self

    def chain_of(self, tensors: Sequence[Tensor]) -> Chain:
        """Return the chain over other values of its weights, in the order of their names."""
        made = self._chain
        named = dict(zip(made.weights.tensors, tensors, strict=True))
        if all(named[name] is each for name, each in made.weights.tensors.items()):
            return made
        return replace(made, weights=made.weights.of(named))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy of a layer a number of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._wire is not None:
            from jitgen.layer import ranks

            self._number = ranks.numbered(self)

    def _bind(self) -> Chain:
        """
        Return the chain over the weights as they are now.

        Raises:
            InputError: They do not fit this layer.
        """
        before = self._made.weights
        weights = before.replaced(self._tensors(before))
        _require_fit(self.config, weights)
        return replace(self._made, weights=weights)

    def _tensors(self, like: ExpertWeights) -> dict[str, Tensor]:
        """Return the tensors that the module has by the names of `like`'s."""
        found = {name: getattr(self, name, None) for name in like.tensors}
        for name, tensor in found.items():
            require(name, tensor)
        return found  # type: ignore[return-value]


def _require_one_launch(one_launch: object, *, has_memory: bool) -> None:
    if not any(one_launch is each for each in (False, True, None)):
        raise InputError("one_launch", f"must be False, True or None (got {one_launch!r})")
    if one_launch is not False and not has_memory:
        raise InputError("one_launch", "must be False without max_tokens and workspace")


def _require_fit(config: MoEConfig, weights: ExpertWeights) -> None:
    """Require weights for a layer."""
    have = (weights.groups, weights.hidden, weights.intermediate)
    wanted = (config.groups, config.hidden, config.intermediate)
    if have != wanted:
        raise InputError(
            "weights", f"must have G, H, I = {wanted}, as the config says (got {have})"
        )
    require_gates(config, weights)


def _is_too_large(x: object, workspace: Workspace) -> bool:
    """Say whether matrices of tokens have more rows than there is room for."""
    if not isinstance(x, Tensor) or x.dim() != 3:  # which is refused later
        return False
    return not workspace.has_room(x.shape[0], x.shape[1])


def _look_again(layer: MoELayer, *_: object) -> None:
    """Let a layer look at values that were loaded now, and not in the middle of its next call."""
    layer._made = layer._bind()
