# SPDX-License-Identifier: Apache-2.0
"""
Arguments to a launch: the part of a call that runs once for each combination of shapes.

A launch is remembered under a small tuple of what it depends on and what the compiled entry does
not check by itself: that the scales' blocks cover N and K. Everything else that could be wrong with
later tensors of the same shapes (types, strides, alignment, devices, sizes that disagree) the entry
refuses before it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from jitgen.boundary import boundary
from jitgen.errors import InputError, ResourceError, UnsupportedConfig
from jitgen.model import KernelConfig, Layout, Operands, Problem, ScaleGranularity, require
from jitgen.ops import standin
from jitgen.ops.dtypes import TORCH
from jitgen.ops.quantize import is_kernel_layout, kernel_layout
from jitgen.ops.tracing.detect import is_traced
from jitgen.ops.validate import Arguments, Facts, validate
from jitgen.runtime import fallback, registry
from jitgen.select import Choice, select
from jitgen.settings import settings

MEMO_SIZE = 8192
"""Launches that are remembered; one more forgets all of them, and each is soon found again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """
    What a call needs besides its tensors.

    Attributes:
        function: The compiled entry.
        tail: What the entry takes behind the tensors: on a GPU the number of SMs, for one CTA on
            each.
        copies_scales: Whether kernels cannot read a_scale with the strides that it has.
        unit_scales: Scales of one, for operands that come without.
        out_shape: Shape of an output that the caller leaves to us.
        out_dtype: Its type.
        config: The config that serves. The memo's key holds the identity of one that was asked for,
            and this keeps that object alive.
        awaited: The config that was chosen, where another serves until its kernel is compiled.
    """

    function: Callable[..., Any]
    tail: tuple[int, ...]
    copies_scales: bool
    unit_scales: tuple[Tensor, ...]
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype
    config: KernelConfig
    awaited: KernelConfig | None

    def new_out(self, a: Tensor) -> Tensor:
        """Return an output on the device of `a`, not initialised."""
        return torch.empty(self.out_shape, dtype=self.out_dtype, device=a.device)


has_several_gpus = False
"""Whether launches depend on which GPU holds the tensors; known from the first one on a GPU on."""

memo: dict[tuple[Any, ...], Launch] = {}
registry.at_reset(memo.clear)
_epoch = object()  # another one with each kernel that arrives


def _switch(config: KernelConfig | None = None) -> None:
    """Forget the launches that await `config`, or any: the next call looks for it again."""
    global _epoch
    _epoch = object()
    for key, launch in list(memo.items()):
        if launch.awaited is not None and config in (None, launch.awaited):
            memo.pop(key, None)


registry.at_arrival(_switch)
os.register_at_fork(after_in_child=_switch)  # nobody would tell the child when it has arrived


def run(given: Arguments, config: KernelConfig | None, key: tuple[Any, ...]) -> Tensor:
    """
    Do what `grouped_gemm` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import grouped_gemm as traced

        return traced.record(given, config)
    try:
        with boundary("grouped_gemm"):
            return _run(given, config, key)
    except ResourceError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise _OutOfMemory(str(error)) from error.__cause__
        raise


class _OutOfMemory(ResourceError, torch.OutOfMemoryError):
    """The device has no memory left for an output: an error of jitgen's, and of torch's."""


def _run(given: Arguments, config: KernelConfig | None, key: tuple[Any, ...]) -> Tensor:
    epoch = _epoch
    launch = _prepare(given, config)
    # While a graph is captured nobody looks for what is awaited, and scales may be the graph's own:
    # the next call prepares again.
    is_capturing = given.a.is_cuda and torch.cuda.is_current_stream_capturing()
    is_waiting = is_capturing and (launch.awaited is not None or launch.unit_scales)
    # Nor is one remembered that a dispatch mode was told not to see: the next it is to see.
    if not (is_waiting or torch._C._len_torch_dispatch_stack()):
        if len(memo) >= MEMO_SIZE:
            memo.clear()
        memo[key] = launch
        if launch.awaited is not None and epoch is not _epoch:
            memo.pop(key, None)  # it may have arrived after we looked and before we remembered
    out = launch.new_out(given.a) if given.out is None else given.out
    a_scale = given.a_scale
    if a_scale is not None and _has_blocks(launch.config):
        a_scale = kernel_layout(a_scale)
    scales = launch.unit_scales or (a_scale, given.b_scale)
    launch.function(given.a, given.b, *scales, given.groups, out, *launch.tail)
    return out


def _prepare(given: Arguments, config: KernelConfig | None) -> Launch:
    """Validate `given`, choose a config unless one is forced, and get a kernel."""
    facts = validate(given)
    choice = None
    if config is None:
        choice = _choice(facts, given.expected_m)
        wanted = choice.config
    else:
        require_fit(config, facts)
        wanted = config
    device, a_scale = given.a.device, given.a_scale
    function, served = _nothing, wanted
    if 0 not in facts.shape:
        function, served = _function(wanted, choice, facts, device)
    return Launch(
        function=function,
        tail=(_num_sms(device),) if facts.arch.is_gpu else (),
        copies_scales=a_scale is not None and _has_blocks(served) and not is_kernel_layout(a_scale),
        unit_scales=_unit_scales(device, facts.groups) if given.b_scale is None else (),
        out_shape=facts.shape,
        out_dtype=TORCH[facts.out_dtype],
        config=served,
        awaited=None if served == wanted else wanted,
    )


def _function(
    wanted: KernelConfig, choice: Choice | None, facts: Facts, device: torch.device
) -> tuple[Callable[..., Any], KernelConfig]:
    """
    Return an entry for tensors on `device`, and its config: `wanted`, or another that may serve.

    One that was forced, and so is no choice, is never replaced.
    """
    global has_several_gpus
    emulated = standin.current()
    if emulated is not None and device.type == "cpu":
        return emulated.function(wanted), wanted
    if choice is not None and settings.on_miss == "fallback":
        neighbours = (c.config for c in choice.candidates if c.config != wanted)
        kernel = fallback.serve(registry.default(), wanted, neighbours, facts.arch)
    else:
        kernel = registry.get_kernel(wanted, facts.arch)
    served = wanted if kernel.config == wanted else kernel.config
    if facts.arch.is_gpu and torch.cuda.device_count() > 1:
        has_several_gpus = True
        return _on_device(kernel.function, device), served
    return kernel.function, served


def _choice(facts: Facts, expected_m: int | None) -> Choice:
    """Return the selector's choice; unless told, groups share the rows and masked ones are full."""
    is_masked = facts.layout is Layout.MASKED
    rows = facts.rows * facts.groups if is_masked else facts.rows
    problem = Problem(
        layout=facts.layout,
        groups=facts.groups,
        m=rows if expected_m is None else expected_m * facts.groups,
        n=facts.n,
        k=facts.k,
        a_dtype=facts.a_dtype,
        out_dtype=facts.out_dtype,
        scale_granularity=facts.scale_granularity,
    )
    try:
        return select(problem, facts.arch)
    except UnsupportedConfig as error:
        raise InputError("a", str(error)) from None


def require_config(config: object) -> None:
    """
    Do nothing if `config` is one.

    Raises:
        InputError: It is not.
    """
    if not isinstance(config, KernelConfig):
        raise InputError("config", f"must be a KernelConfig (got {type(config).__name__})")


def require_fit(config: KernelConfig, facts: Facts) -> None:
    """
    Do nothing if `config` is legal and made for tensors like these.

    Raises:
        InputError: It is no config, or one for other tensors.
        UnsupportedConfig: The target cannot run it.
    """
    require_config(config)
    operands = Operands(
        a_dtype=facts.a_dtype,
        b_dtype=facts.a_dtype,
        out_dtype=facts.out_dtype,
        scale_granularity=facts.scale_granularity,
    )
    if config.layout is not facts.layout or config.operands != operands:
        raise InputError(
            "config",
            f"must be for {facts.layout}, {_words(operands)}, as the tensors are "
            f"(got one for {config.layout}, {_words(config.operands)})",
        )
    require(config, facts.arch)


def _has_blocks(config: KernelConfig) -> bool:
    return config.operands.scale_granularity is ScaleGranularity.BLOCK128


def _words(operands: Operands) -> str:
    return (
        f"{operands.a_dtype} x {operands.b_dtype} -> {operands.out_dtype} "
        f"with {operands.scale_granularity} scales"
    )


def _nothing(*_: Any) -> None:
    """Launch nothing: there are no rows."""


def _on_device(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return `function` for a process of several GPUs, of which another may be the current one."""
    index = device.index

    def call(*arguments: Any) -> None:
        if torch.cuda.current_device() == index:
            function(*arguments)
            return
        with torch.cuda.device(index):
            function(*arguments)

    return call


def _num_sms(device: torch.device) -> int:
    emulated = standin.current()
    if emulated is not None and device.type == "cpu":
        return emulated.num_sms
    return _num_sms_of_gpu(device)


@cache
def _num_sms_of_gpu(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


_kept_scales: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}


def _unit_scales(device: torch.device, groups: int) -> tuple[Tensor, Tensor]:
    """Return scales of one: the same ones for every call, but for a call that a graph captures."""
    place = (device, groups)
    if place not in _kept_scales:
        scales = torch.ones(1, device=device), torch.ones(groups, device=device)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return scales  # nothing but a replay of that graph fills them
            torch.cuda.current_stream(device).synchronize()  # other streams read them, too
        _kept_scales[place] = scales
    return _kept_scales[place]
