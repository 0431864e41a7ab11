# SPDX-License-Identifier: Apache-2.0
"""A layer of experts as a torch module, with its memory and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.config import Arch, Config
from jitgen.errors import InputError
from jitgen.layer import plan as plans
from jitgen.layer.bound import BoundExperts, look_again, require_weights
from jitgen.layer.call import run
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.experts import run_experts
from jitgen.layer.lora import ExpertLora, require_fit
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Workspace
from jitgen.ops.route.results import Routing, Sorting
from jitgen.plans.plan import Plan, configs
from jitgen.plans.prewarm import PrewarmReport, prewarm
from jitgen.support.moved import with_new_names

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from jitgen.parallel import ExpertMap, Wire
    from jitgen.parallel.moves import Move


_look_again = look_again  # its name in pickles of whole layers that were saved before 1.0


class MoELayer(BoundExperts):
    """
    The experts of a layer, or one rank's share of them: a module that holds weights and calls
    `jitgen.moe`.

    The weights are buffers, or parameters if they are given as ``nn.Parameter``. So they move with
    the module and are in its state. Each call uses the weights that the module has at that time, no
    matter how they were set: by assignment, `load_state_dict`, `torch.func.functional_call` or
    FSDP. The memory between the launches is allocated at the first call and kept; several layers
    may share it. Calls from which autograd needs a gradient use torch's allocator instead.

    Safe to call from any thread, on any stream, and while a CUDA graph of it replays: see
    `jitgen.Workspace`.

    Args:
        config: The description of the layer.
        weights: Its experts on this rank.
        max_tokens: Most tokens for which memory is kept; calls with more make several passes. None:
            no memory is kept, and torch's allocator provides it for each call.
        workspace: Memory of another layer, to be shared instead of allocating its own.
        group: The ranks that share the layer, each with its own `weights`: a group of
            torch.distributed, or the result of `jitgen.parallel.connect`, which layers on one
            stream may share. If `config` describes the whole layer, this rank takes its share of
            the experts, `jitgen.parallel.share`. Every rank makes the layer, and all make the same
            number of calls. `max_tokens` is required; it is the number of each rank, and equal on
            all ranks.
        expert_map: With a group: which rank has which experts, some of them several times, as
            `jitgen.parallel.balance` proposes; equal on every rank. `weights` are nevertheless
            those of this rank's share; the ranks send each other the weights that the map needs.
        lora: Low-rank adapters of the experts, for calls with `adapter_ids`. They move with the
            module, but are not in its state. A server may assign other adapters to the attribute
            `lora`, or write to their tensors in place.
        one_launch: Whether calls with at most 8 tokens use a single launch instead of the chain, if
            there is such a kernel. False: never. True: always. None: with at most 4 tokens, with
            which it was faster in all measurements. With True or None, two such launches must not
            run on a GPU at the same time, for example on two streams, because their CTAs wait for
            each other. Layers with one workspace share the memory for this.

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
        wire: Wire | None = None
        if group is not None:
            from jitgen.layer import ranks

            if lora is not None:
                raise InputError("lora", "must be None with a group: adapters stay on a rank")
            wire, config, weights = ranks.shared(group, config, weights, max_tokens, expert_map)
        elif expert_map is not None:
            raise InputError("expert_map", "must be None without a group")
        require_weights(config, weights)
        if lora is not None:
            require_fit(lora, config, weights)
        _require_one_launch(one_launch, has_memory=max_tokens is not None or workspace is not None)
        if one_launch is not False and group is not None:
            raise InputError("one_launch", "must be False with a group: ranks wait for each other")
        super().__init__(Chain(config=config, weights=weights, one_launch=one_launch))
        self.lora = lora
        self.config = config
        self.max_tokens = max_tokens
        self._workspace = workspace
        self._wire = wire
        self._number = None if wire is None else ranks.numbered(self)

    @property
    def workspace(self) -> Workspace | None:
        """The memory between its launches; None if no memory is kept."""
        if self._workspace is None and self.max_tokens is not None:
            most = self.max_tokens
            if self._wire is not None:
                most = self._wire.ranks * min(most, self._pass_tokens(self._wire))
            self._workspace = Workspace.of(self.config, self.weights, most)
        return self._workspace

    @staticmethod
    def _pass_tokens(wire: Wire) -> int:
        from jitgen.layer.passes import pass_tokens

        return pass_tokens(wire)

    @property
    def wire(self) -> Wire | None:
        """The connection to the other ranks; None if the layer is not shared."""
        return getattr(self._wire, "wire", self._wire)

    @property
    def expert_map(self) -> ExpertMap | None:
        """Which ranks have which experts; None if each has its share."""
        return getattr(self._wire, "expert_map", None)

    def move(self, expert_map: ExpertMap) -> Move:
        """
        Begin to move experts to the places of another map of the same sizes, while calls continue
        with the old map. All ranks call this between the same two calls of the layer. ``finish()``
        of the returned object makes the next call use the new map, including calls in CUDA graphs
        that were captured before.

        Until then, the weights that this rank receives take additional memory.

        Raises:
            InputError: The layer was made without a map, the new one has other sizes or is not the
                same on every rank, or the previous move is not finished.
        """
        from jitgen.layer import ranks

        return ranks.move(self._wire, expert_map, self.weights, partial(look_again, self))

    @property
    def num_ranks(self) -> int:
        """Number of ranks that share the layer."""
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
        Run every token through its experts: see `jitgen.moe`.

        Args:
            x: (T, H) bfloat16.
            topk_weights: (T, k) float32.
            topk_ids: (T, k) int32 or int64.
            sorting: The result of `jitgen.route` for them; it saves the launch that sorts.
            shared: (T, H) bfloat16, added at the end.
            out: (T, H) bfloat16: where the result goes.
            shared_weights: (T,) float32, factors of the rows of `shared`, such as a gate.
            rank_tokens: With a group: the largest number of tokens of a rank in this call, the same
                number on all ranks; None: `max_tokens` of the group's connection.
            adapter_ids: (T,) int32 or int64: the adapter of each token; -1 for no adapter. None: no
                token has an adapter.
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
        Run every expert on its own matrix of tokens, between the dispatch and the combine of expert
        parallelism: see `jitgen.moe_experts`.

        The call uses the layer's memory if that has room for G * M rows, and torch's allocator
        otherwise.

        Args:
            x: (G, M, H) bfloat16, or float8_e4m3fn with `x_scale`.
            masked_m: (G,) int32: number of rows of each matrix that are tokens.
            x_scale: (G, M, ceil(H / 128)) float32, or (G, M) for activations of rows.
            expected_m: Expected number of rows of an expert; None: M.
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
        quantise: bool | None = None,
        flags_from: int | None = None,
    ) -> Plan:
        """
        Return a plan for `jitgen.prewarm` with every kernel that the layer may need.

        Args:
            max_tokens: Most tokens of a call; None: the `max_tokens` of the layer, or the tokens of
                one pass. With a group, None: most tokens of a rank in a pass or micro-batch.
            arch: The target; None: the one that this process would use.
            name: What the plan is called.
            masked: Most rows of an expert, M, in calls of `experts`; the plan then has their
                kernels, too. None: only the kernels of `forward`.
            trains: Whether the plan is for calls that need gradients: it has the kernels of their
                forward and backward passes.
            num_ranks: Number of ranks that will share the layer by a group, each with `max_tokens`,
                if the layer was made without a group, for example on the device ``meta``; None:
                that of its group.
            quantise: Whether these ranks quantise tokens before they send them, as for
                `jitgen.parallel.connect`; None: as those of its group, or without a group both.
            flags_from: The number of tokens of these ranks from which on flags say that data has
                come, as for `jitgen.parallel.connect`; 0: never. None: as those of its group;
                without a group the plan has the kernels without flags for all numbers of tokens,
                and those with flags for the numbers that `connect` chooses by itself.
        """
        if num_ranks is None and self._wire is not None:
            num_ranks = self._wire.ranks
        if quantise is None and self._wire is not None:
            quantise = self._wire.quantises
        if flags_from is None and self._wire is not None:
            flags_from = self._wire.flags_from or 0
        tokens = max_tokens
        if tokens is None:
            tokens = self.max_tokens if self._wire is None else self._pass_tokens(self._wire)
        return plans.of(
            self._chain,
            tokens,
            arch,
            name=name,
            masked=masked,
            trains=trains,
            num_ranks=num_ranks,
            can_mask=self._wire is not None and self._wire.can_mask,
            quantises=quantise,
            flags_from=flags_from,
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
        trains: bool = False,
        num_ranks: int | None = None,
        **options: Any,
    ) -> PrewarmReport:
        """
        Compile or fetch every kernel of the layer's plan into the store.

        Args:
            arch: As of `plan`.
            max_tokens: As of `plan`.
            masked: As of `plan`.
            trains: As of `plan`.
            num_ranks: As of `plan`.
            options: Other arguments of `jitgen.prewarm`.
        """
        plan = self.plan(max_tokens, arch, masked=masked, trains=trains, num_ranks=num_ranks)
        return prewarm(plan, arch=plans.target(arch), **options)

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
        Read one layer of a checkpoint. Anything in it that is not understood is an error that names
        it.

        These are errors: a tensor below the prefix that is neither read nor known to belong to
        another module; a type of weights, scales or biases whose meaning is not certain; an
        impossible scale (NaN, infinite, negative, or zero for weights that are not zero); an entry
        of the model's ``config.json`` that no layer supports, or that the tensors or the arguments
        contradict. docs/moe-layer.md has the lists.

        Args:
            source: A folder or file of safetensors, or tensors by their names.
            prefix: Beginning of the names of the layer's tensors, without the last dot, such as
                ``model.layers.3.mlp``. None: that of the experts of `layer`.
            layer: Number of the layer, instead of a prefix.
            top_k: Experts of a token, which tensors do not tell; None: as the model's config says.
            config: The model's config: a mapping, or the path of a ``config.json`` or its folder.
                None: the one beside the files, if there is one. ``{}``: no config, only tensors.
            family: One of `jitgen.layer.checkpoints.FAMILIES`; None: found by the names.
            first_expert: The first expert of this rank.
            local_experts: Number of experts of this rank; None: all from `first_expert` on. Other
                experts are not read.
            rank: Which of `ranks` this is.
            ranks: Number of ranks that share the columns I of every expert, in equal parts; their
                results must be added up. If a part begins or ends within a block of scales, or its
                size is not supported by kernels, the layer pads it with zeros.
            device: Where the weights go.
            activation_format: As for `jitgen.moe`.
            dequantize: Read weights of every encoding as bfloat16. INT4 in groups other than 32 and
                128 needs it.
            ignore_input_scales: Ignore static scales of tokens; tokens are then quantised with
                scales that are computed for each call.
            activation: As for `jitgen.MoEConfig`; the same holds for the arguments below. None: as
                the model's config says, otherwise as in the family.
            interleaved: Whether rows of gates and ups alternate; None: as in the family.
            swiglu_limit: As for `jitgen.activation_quantize`.
            swiglu_alpha: Likewise.
            swiglu_beta: Likewise.
            gate_softcap: Likewise.
            up_softcap: Likewise.
            chunk_tokens: Tokens of a pass.
            min_latency: Whether few rows take the kernel of least latency.
            numerics: ``fast`` or ``invariant``.
            max_tokens: As for the constructor.
            workspace: Likewise.
            progress: Called with the number of experts that have been read, and the number of all
                experts to read.
            **old: As for `jitgen.moe`.

        Raises:
            InputError: The checkpoint has no such layer, or something in it is not understood.
            ToolchainError: safetensors is not installed.
            ResourceError: There is no memory for the weights.
            OSError: A file cannot be read.
        """
        arguments = locals().copy()
        if old:
            return cls.from_checkpoint(**with_new_names(cls.from_checkpoint, arguments))
        from jitgen.layer import checkpoints

        return cls._read(checkpoints.load, arguments)

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
        Return the layer of a model's checkpoint, with all weights zero.

        On the device ``meta`` it takes no memory; its `plan` is that of the real layer.

        Args:
            config: The model's config: a mapping, or the path of a ``config.json`` or its folder.
            layer: Number of the layer, which must have experts.
            first_expert: As for `from_checkpoint`; the same holds for the arguments below.
            local_experts: Number of experts of this rank.
            rank: Which of `ranks` this is.
            ranks: Number of ranks that share the columns of every expert.
            device: Where the weights go.
            activation_format: As for `jitgen.moe`.
            dequantize: Whether weights are bfloat16 instead of as the model stores them.
            activation: As for `jitgen.MoEConfig`.
            interleaved: Whether rows of gates and ups alternate.
            swiglu_limit: As for `jitgen.activation_quantize`.
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
            InputError: The config lacks a value that is needed, or has one that no layer supports.
            OSError: The file cannot be read.
        """
        arguments = locals().copy()
        from jitgen.layer import checkpoints

        return cls._read(checkpoints.of_config, arguments)

    @classmethod
    def _read(
        cls,
        read: Callable[..., tuple[MoEConfig, ExpertWeights]],
        arguments: dict[str, Any],
    ) -> Self:
        """Return the layer that `read` returns for the ``locals()`` of a method as it begins."""
        own = {name: arguments.pop(name) for name in ("max_tokens", "workspace")}
        for name in ("cls", "old"):
            arguments.pop(name, None)
        return cls(*read(**arguments), **own)

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
        """Move the weights and the adapters; the memory is allocated anew."""
        super()._apply(fn, recurse)
        if self.lora is not None:
            self.lora = self.lora.moved(fn)
        self._workspace = None
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of a copied layer; if ranks share it, the copy gets its own number."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._wire is not None:
            from jitgen.layer import ranks

            self._number = ranks.numbered(self)


def _require_one_launch(one_launch: object, *, has_memory: bool) -> None:
    if not any(one_launch is each for each in (False, True, None)):
        raise InputError("one_launch", f"must be False, True or None (got {one_launch!r})")
    if one_launch is not False and not has_memory:
        raise InputError("one_launch", "must be False without max_tokens and workspace")


def _is_too_large(x: object, workspace: Workspace) -> bool:
    """Say whether matrices of tokens have more rows than the workspace has room for."""
    if not isinstance(x, Tensor) or x.dim() != 3:  # which is refused later
        return False
    return not workspace.has_room(x.shape[0], x.shape[1])
