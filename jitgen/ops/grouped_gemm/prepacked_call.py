# SPDX-License-Identifier: Apache-2.0
"""
`grouped_gemm` with prepacked weights: its warm path, and the functions that it calls on a miss.

As in `jitgen.ops.grouped_gemm.call`, a launch is cached under a tuple of the properties that the
compiled entry does not check: the entry gets blocks of weights, and not N and K of the matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config import Config
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import CaptureMiss, KernelMiss
from jitgen.events import warn_once
from jitgen.formats.block128 import is_kernel_layout, kernel_layout
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.protocol import TORCH
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.grouped_gemm.dispatch import AnyGroupedGemm
from jitgen.ops.grouped_gemm.prepacked_algorithms import Algorithms, algorithms
from jitgen.ops.grouped_gemm.prepacked_validate import PrepackedArguments, tensors_of, validate
from jitgen.ops.grouped_gemm.validate import Arguments, Validated
from jitgen.ops.launch import AnyLaunch, Family, Kernel, Key, present, similar
from jitgen.ops.tensors import groups_of
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import Choice
from jitgen.support.frozen import frozen


@frozen
class PrepackedLaunch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        copies_scales: Whether a_scale must be copied, because kernels cannot read its strides.
        front: Number of leading dimensions of a that out has, too.
        columns: N of the result that the call allocates if `out` is not given.
        out_dtype: Its type.
    """

    copies_scales: bool
    front: int
    columns: int
    out_dtype: torch.dtype

    def run(
        self,
        a: Tensor,
        b: PrepackedWeights,
        a_scale: Tensor | None,
        bias: Tensor | None,
        groups: Tensor | None,
        out: Tensor | None,
    ) -> Tensor:
        """
        Launch the kernel, and return the result.

        Raises:
            ValueError: Sizes do not fit each other, in the two ways that the entry does not see.
        """
        if a.size(-1) != b.k or (out is not None and out.size(-1) != b.n):
            raise ValueError("a has another K than b, or out another N")
        if out is None:
            shape = (*a.shape[: self.front], self.columns)
            out = a.new_empty(shape, dtype=self.out_dtype)
        if self.copies_scales:
            a_scale = kernel_layout(a_scale)  # type: ignore[arg-type]
        more = () if bias is None else (bias,)
        if a_scale is None:
            self.function(a, b.values, b.factor, *more, groups, out, *self.tail)
        else:
            self.function(a, b.values, a_scale, b.factor, *more, groups, out, *self.tail)
        return out


@frozen
class UnpackedLaunch(AnyLaunch):
    """
    A cached launch that unpacks the weights first; `function` multiplies them.

    Attributes:
        unpack: The compiled entry that unpacks weights.
        unpack_config: Its config.
        front: Number of leading dimensions of a that out has, too.
        columns: N of the result that the call allocates if `out` is not given.
        out_dtype: Its type.
    """

    unpack: Callable[..., Any]
    unpack_config: Config
    front: int
    columns: int
    out_dtype: torch.dtype

    def run(
        self,
        a: Tensor,
        b: PrepackedWeights,
        a_scale: Tensor | None,
        bias: Tensor | None,
        groups: Tensor | None,
        out: Tensor | None,
    ) -> Tensor:
        """
        Launch both kernels, and return the result.

        The memory of the unpacked weights returns to torch's allocator when this function returns;
        later work on the same stream may use it.

        """
        if out is None:
            shape = (*a.shape[: self.front], self.columns)
            out = a.new_empty(shape, dtype=self.out_dtype)
        values = b.values.new_empty((b.groups, b.n, b.k), dtype=torch.float8_e4m3fn)
        scale = b.factor.new_empty((b.groups, b.n))
        self.unpack(b.values, b.factor, values, scale, *self.tail)
        more = () if bias is None else (bias,)
        self.function(a, values, a_scale, scale, *more, groups, out, *self.tail)
        return out


def grouped_gemm(args: PrepackedArguments) -> Tensor:
    """
    Compute `jitgen.grouped_gemm` with prepacked weights.

    Raises:
        InputError: An argument is wrong, or does not fit the explicit config.
        JitgenError: As `jitgen.grouped_gemm`.
    """
    key: Key = ()
    if not is_dynamo_compiling():
        try:
            a, b, a_scale, offs, masked_m = args.a, args.b, args.a_scale, args.offs, args.masked_m
            out, bias, config = args.out, args.bias, args.config
            groups = offs if masked_m is None else masked_m
            groups = args.m_indices if groups is None else groups
            key = (
                # Wrong arguments, too: they are never cached.
                (offs is None, args.m_indices is None, masked_m is None),
                a.numel(),  # in its place: `launch.ROWS`
                (args.b_scale is None, args.alpha is None),
                b.kind,
                a.dim(),
                None if a_scale is None else a_scale.dim(),
                bias is None,
                out is None,
                args.out_dtype,
                args.expected_m,
                args.min_latency,
                args.numerics,
                None if config is None else id(config),
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: PrepackedLaunch | UnpackedLaunch
            for launch in session.memo.get(key) or similar(session, key, _rows(args)):
                if launch.fits(*present(a, b.values, b.factor, a_scale, groups, out, bias)):
                    if out is not None:
                        mark_written((out,))
                    return launch.run(a, b, a_scale, bias, groups, out)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    return CALL.run(args, key)


def _rows(args: PrepackedArguments) -> Tensor:
    """Return a tensor whose dimension -2 has the rows: a, or a_scale if a has two parts."""
    a, a_scale = args.a, args.a_scale
    has_parts = a.dim() > (2 if args.masked_m is None else 3)
    return a_scale if has_parts and a_scale is not None else a


class PrepackedGroupedGemm(AnyGroupedGemm[PrepackedWeights]):
    """
    Calls of `grouped_gemm`, with prepacked weights: arguments, validation, choice and launch.

    In a graph the weights are given by their two tensors, N, their layout and format; K is that of
    a. A graph does not hold how far the exponents of a row differ, because that depends on values,
    which may change between runs of the graph. So graphs never unpack weights.
    """

    name = "grouped_gemm_prepacked"
    called = "grouped_gemm"
    tensors_of = staticmethod(tensors_of)
    validate = staticmethod(validate)

    def chosen(
        self, args: PrepackedArguments, valid: Validated, session: Session
    ) -> tuple[AnyLaunch, Family, int]:
        """
        Return a launch of one kernel for prepacked weights, or of two: one that unpacks the
        weights, and one for FP8 weights; its family; and its rows.
        """
        rows = self.rows(args, valid)
        if args.config is None and rows and args.b.has_near_rows:
            problem = self.problem(args, valid)
            found = algorithms(problem, valid.arch, choose=session.select)
            if found is not None and found.is_unpacked:
                family = self.family(problem, args, valid)
                return _unpacked(valid, found, session), family, rows
        return super().chosen(args, valid, session)

    def launch(self, args: PrepackedArguments, valid: Validated, kernel: Kernel) -> PrepackedLaunch:
        scale = args.a_scale
        is_blocked = valid.operands.a_scale_granularity == "block128"
        copies_scales = is_blocked and scale is not None and not is_kernel_layout(scale)
        return _prepacked(valid, kernel, copies_scales=copies_scales)

    def start(self, launch: PrepackedLaunch | UnpackedLaunch, args: PrepackedArguments) -> Tensor:
        tensors = (args.a_scale, args.bias, groups_of(args), args.out)
        return launch.run(args.a, args.b, *tensors)

    def in_graph(self) -> list[tuple[str, str, Any]]:
        """
        Return name, type and default of each argument in a graph. Their order is that of graphs
        that older versions saved: the bias follows masked_m, and the format, which those graphs
        lack, is last.
        """
        found = {name: (name, kind, default) for name, kind, default in super().in_graph()}
        weights = (("b_factor", "Tensor"), ("n", "int"), ("b_layout", "str"))
        found["b"] = ("b", "Tensor", ...)
        found |= {name: (name, kind, ...) for name, kind in weights}
        for name in ("b_scale", "alpha"):  # parts of prepacked weights
            del found[name]
        first = ("a", "b", *[name for name, _ in weights], "a_scale")
        first += ("offs", "m_indices", "masked_m", "bias")
        last = ("b_format", "str", str(PrepackedFormat.MXFP4))
        return [*(found.pop(name) for name in first), *found.values(), last]

    def to_graph(self, args: PrepackedArguments, config: str | None) -> tuple[Any, ...]:
        b = args.b
        named = {**args._asdict(), "config": config, "b": b.values}
        named |= {"b_factor": b.factor, "n": b.n, "b_layout": str(b.layout)}
        named["b_format"] = str(b.format)
        return tuple([named[name] for name, _, _ in self.in_graph()])

    def of_graph(self, named: dict[str, Any]) -> PrepackedArguments:
        weights = PrepackedWeights(
            values=named["b"],
            factor=named["b_factor"],
            n=named["n"],
            k=int(named["a"].shape[-1]),
            layout=named["b_layout"],
            format=named.get("b_format", PrepackedFormat.MXFP4),
        )
        rest = {name: each for name, each in named.items() if name in Arguments._fields}
        return Arguments(**rest | {"b": weights})

    def new_results(self, args: PrepackedArguments, valid: Validated | None) -> tuple[Tensor, ...]:
        rank = 2 if args.masked_m is None else 3
        shape = (*args.a.shape[: rank - 1], args.b.n)
        return (args.a.new_empty(shape, dtype=args.out_dtype or torch.bfloat16),)


def _prepacked(valid: Validated, kernel: Kernel, *, copies_scales: bool) -> PrepackedLaunch:
    """Return a launch of a kernel for prepacked weights."""
    return PrepackedLaunch(
        **kernel,
        copies_scales=copies_scales,
        front=len(valid.shape) - 1,
        columns=valid.n,
        out_dtype=TORCH[valid.operands.out_dtype],
    )


def _unpacked(
    valid: Validated, found: Algorithms, session: Session
) -> PrepackedLaunch | UnpackedLaunch:
    """
    Return a launch of two kernels: one unpacks the weights, and one multiplies them.

    If one of them is not compiled, return a launch of the kernel for prepacked weights, which
    computes the same; with JITGEN_ON_MISS=fallback only until the two are compiled, otherwise
    always.
    """
    device, prepacked_configs = valid.device, _in_order(found.prepacked)
    entries: list[Callable[..., Any]] = []
    configs: list[Config] = []
    for choice in (found.unpack, found.gemm):
        wanted, *others = _in_order(choice)
        try:
            function, served = device.entry(session, wanted, (*others, *prepacked_configs))
        except CaptureMiss:
            raise
        except KernelMiss as miss:
            session.note_miss(miss)  # one that passes must not be remembered for good
            warn_once(f"unpacked {miss.kernel}", "weights are not unpacked first: %s", miss)
            wanted, *others = prepacked_configs
            function, served = device.entry(session, wanted, others)
        if served in prepacked_configs:
            kernel: Kernel = {
                "function": function,
                "tail": device.tail,
                "config": served,
                "asked": None,
                "awaited": None if served == wanted else wanted,
            }
            return _prepacked(valid, kernel, copies_scales=False)
        entries.append(function)
        configs.append(served)
    awaited = (each for each, served in zip(found.kernels, configs, strict=True) if each != served)
    return UnpackedLaunch(
        unpack=entries[0],
        unpack_config=configs[0],
        function=entries[1],
        tail=device.tail,
        front=len(valid.shape) - 1,
        columns=valid.n,
        out_dtype=TORCH[valid.operands.out_dtype],
        config=configs[1],
        awaited=next(awaited, None),
    )


def _in_order(choice: Choice) -> list[Config]:
    """Return the candidates of a choice, best first."""
    return [candidate.config for candidate in choice.candidates]


CALL = PrepackedGroupedGemm(lambda **named: grouped_gemm(Arguments(**named)))
