# SPDX-License-Identifier: Apache-2.0
"""
``jitgen demo``: run a small MoE layer with real kernels, and show where they came from and how long
that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import click

from jitgen._version import __version__
from jitgen.cli.options import with_output
from jitgen.cli.output import ExitCode, Output, counted, human_size, human_time
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import JitgenError
from jitgen.events import Event, EventKind, on_event
from jitgen.runtime.session import current
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import like, one_of
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from jitgen.bench.layer.cases import Case
    from jitgen.bench.layer.operands import Operands

TOLERANCE = 2.0**-7
"""Allowed error: both sides round to bfloat16 (2**-9 each), and add in different orders before."""

WARM_CALLS = 20
_GPU_SIZES, _CPU_SIZES = (4096, 2048, 1024), (64, 256, 256)
"""Tokens, values of a token, and values between the products."""

_CROSS = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8 * 256, n=4096, k=7168)
"""GroupedGemmProblem of the cross-compiled kernel: an expert layer of DeepSeek-V3."""


@frozen
class Call:
    """
    One timed call.

    Attributes:
        source: Place from which its kernel came: ``compiled``, ``disk`` or ``memory``.
        seconds: Time of the whole call, result included.
    """

    source: Annotated[str, one_of("compiled", "disk", "memory")]
    seconds: v.Seconds


@frozen
class Step:
    """
    One of the layer's two GEMMs.

    Attributes:
        name: ``up`` or ``down``.
        shape: Rows, N and K.
        first: The first call of this process.
        fresh: The first call with a loader that has nothing in memory.
        warm: The median of later calls.
        error: Largest difference from the reference, relative to the largest value.
    """

    name: str
    shape: tuple[v.Count, v.Count, v.Count]
    first: Call
    fresh: Call
    warm: Call
    error: float


@frozen
class _CrossCompiled:
    """A kernel for a GPU that this machine does not have, and its resources on that GPU."""

    name: v.Name
    source: str
    seconds: v.Seconds
    threads: v.Count
    registers: v.Count
    stack_bytes: v.Bytes
    shared_bytes: v.Bytes
    bytes: v.Bytes


@frozen
class _UsedKernel:
    """A kernel that the layer called."""

    name: v.Name
    key: v.Key
    bytes: v.Bytes


@frozen
class _Demonstrated:
    arch: v.ArchName
    device: str
    sizes: Annotated[Mapping[str, v.Count], v.by("size")]
    steps: Sequence[Step]
    layer_error: float
    kernels: Sequence[_UsedKernel]
    cross_compiled: _CrossCompiled | None
    cross_error: v.Reason
    ok: v.Ok


@click.command()
@with_output
def demo(output: Output) -> int:
    """
    Quantise, route and multiply a small MoE layer: 8 experts, 2 for each token.

    Runs on the best available target and compares every product with a float32 reference. Shows
    which kernels were compiled, loaded from disk or taken from memory, and how long each took.
    Without a GPU, one sm_90a kernel is compiled as well.
    """
    output.note("preparing a layer with random weights")
    import torch

    from jitgen.bench.layer import ours
    from jitgen.bench.layer.cases import Case
    from jitgen.bench.layer.operands import Experts, Operands
    from jitgen.layer import reference
    from jitgen.selection.device import cpu_name
    from jitgen.targets.devices import default_arch

    arch = default_arch()
    is_gpu = arch.is_gpu and torch.cuda.is_available()
    arch = arch if is_gpu else Arch.CPU
    tokens, hidden, intermediate = _GPU_SIZES if is_gpu else _CPU_SIZES
    sizes = Case(experts=8, tokens=tokens, hidden=hidden, intermediate=intermediate, top_k=2)
    place = "cuda" if is_gpu else "cpu"
    layer = Operands(sizes, Experts(sizes, sizes.experts, place), place)
    output.note("first call: compiling what the cache lacks")
    steps = _run(layer)
    whole = ours.prepare(layer)
    whole.call()
    layer_error = reference.relative_error(whole.result(), layer.expected(whole.weights))
    kernels = current.get().loader.loaded()
    cross, cross_error = (None, "") if is_gpu else _try_cross_compile(output)
    tolerance = reference.TOLERANCE[str(whole.weights.activation_format)]
    is_right = all(step.error <= TOLERANCE for step in steps) and layer_error < tolerance
    device = torch.cuda.get_device_name() if is_gpu else cpu_name()

    def human() -> None:
        output.line(f"jitgen {__version__} on {device}, target {arch}", style="bold")
        output.line(_describe(sizes))
        output.line()
        output.table(_COLUMNS, [_cells(step) for step in steps])
        output.line()
        for kernel in kernels:
            size = human_size(kernel.entry.meta.size_bytes)
            output.line(f"{kernel.name}  {size}")
        if sum(kernel.config.op == _CROSS.op for kernel in kernels) == 1:
            output.line("One kernel serves both products: sizes are arguments, not part of it.")
        verdict = "agrees" if is_right else "DISAGREES"
        output.line(
            f"The layer {verdict} with the float32 reference (error {layer_error:.1e}).",
            style="green" if is_right else "bold red",
        )
        output.line()
        if cross is not None:
            _print_cross(output, cross)
        if cross_error:
            output.line(f"Cross-compiling for a GPU failed: {cross_error}", style="bold red")
        output.line()
        output.line(f"cache  {settings.cache_dir}")
        output.line(
            "next   jitgen configs, jitgen cache ls, jitgen prewarm deepseek-v3 --arch sm_90a"
        )

    document = _Demonstrated(
        arch=arch,
        device=device,
        sizes=asdict(sizes),
        steps=steps,
        layer_error=layer_error,
        kernels=[
            like(_UsedKernel, kernel, bytes=kernel.entry.meta.size_bytes) for kernel in kernels
        ],
        cross_compiled=cross,
        cross_error=cross_error,
        ok=is_right and not cross_error,
    )
    output.report("demo", document, human)
    return ExitCode.OK if document.ok else ExitCode.FAILED


def _run(layer: Operands) -> list[Step]:
    """Time the first call of both products, a call with a new loader, and warm calls."""
    import jitgen
    from jitgen.bench.layer import ours
    from jitgen.layer.workspace import Buffers

    chain = ours.chain(layer)
    weights = chain.weights
    pairs = chain.sort(layer.topk_ids)
    rows = chain.gather(layer.x, pairs)
    up = jitgen.reference.grouped_gemm(
        rows[0], weights.w13, rows[1], weights.w13_scale, offs=pairs.offs
    )
    active = jitgen.reference.activation_quantize(up, offs=pairs.offs)
    down = jitgen.reference.grouped_gemm(
        active[0], weights.w2, active[1], weights.w2_scale, offs=pairs.offs
    )
    into = Buffers(h=up.new_empty(up.shape), y=down.new_empty(down.shape))
    calls: dict[str, Callable[[], Tensor]] = {
        "up": partial(chain.gate_up, rows, pairs, into),
        "down": partial(chain.down, active, pairs, into),
    }

    def all_calls() -> dict[str, Call]:
        return {name: _timed(call) for name, call in calls.items()}

    first = all_calls()
    current.get().reset()
    fresh = all_calls()
    steps = []
    for name, expected, depth in (("up", up, rows[0]), ("down", down, active[0])):
        warm = sorted(
            (_timed(calls[name]) for _ in range(WARM_CALLS)),
            key=lambda timed: timed.seconds,
        )
        steps.append(
            Step(
                name=name,
                shape=(*expected.shape, depth.shape[-1]),
                first=first[name],
                fresh=fresh[name],
                warm=warm[WARM_CALLS // 2],
                error=_largest_error(calls[name](), expected),
            )
        )
    return steps


def _largest_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected value."""
    difference = (found.float() - expected.float()).abs().max()
    return float(difference / expected.float().abs().max().clamp(min=1e-30))


def _timed(call: Callable[[], Tensor]) -> Call:
    """Call, wait for the result, and return the time and where the kernel came from."""
    import torch

    seen: list[Event] = []
    stop = on_event(seen.append)
    try:
        start = time.perf_counter()
        if call().is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    finally:
        stop()
    kinds = {event.kind for event in seen}
    if EventKind.COMPILE in kinds:
        return Call(source="compiled", seconds=seconds)
    return Call(source="disk" if EventKind.LOAD in kinds else "memory", seconds=seconds)


def _try_cross_compile(output: Output) -> tuple[_CrossCompiled | None, str]:
    """Call `_cross_compile`; return its result, or None and the reason of the failure."""
    try:
        return _cross_compile(output), ""
    except JitgenError as error:
        return None, str(error)


def _cross_compile(output: Output) -> _CrossCompiled:
    """Compile one sm_90a kernel, unless it is in the cache, and return its resources."""
    from jitgen.compile import inspect
    from jitgen.runtime.session import select
    from jitgen.runtime.spec import spec_of
    from jitgen.runtime.tiers import build, readable
    from jitgen.targets.legality import require

    config = select(_CROSS, Arch.SM_90A).config
    output.note(f"cross-compiling {config.name(Arch.SM_90A)}")
    start = time.perf_counter()
    tiers, spec = current.get().loader.tiers, spec_of(config, Arch.SM_90A)
    entry, source = readable(tiers, spec) or build(tiers, spec)
    seconds = time.perf_counter() - start
    derived = require(config, Arch.SM_90A).numbers
    resources = inspect.resources(entry.library)
    return _CrossCompiled(
        name=entry.meta.name,
        source=source,
        seconds=seconds,
        threads=derived["threads"],
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        shared_bytes=derived["smem_bytes"],
        bytes=entry.meta.size_bytes,
    )


def _print_cross(output: Output, cross: _CrossCompiled) -> None:
    came = "compiled" if cross.source == "compiled" else "found in the cache"
    time_text = human_time(cross.seconds)
    output.line(f"There is no GPU here; a kernel for one was {came} in {time_text}:", style="bold")
    output.line(cross.name)
    output.line(
        f"  {cross.threads} threads of {cross.registers} registers, "
        f"{human_size(cross.shared_bytes)} shared memory, {human_size(cross.bytes)} on disk"
    )


_COLUMNS = ("PRODUCT", "M x N x K", ">FIRST CALL", ">FRESH REGISTRY", ">WARM CALL", "ERROR")


def _cells(step: Step) -> tuple[str, ...]:
    calls = (step.first, step.fresh, step.warm)
    cells = [f"{call.source}, {human_time(call.seconds)}" for call in calls]
    return (step.name, " x ".join(map(str, step.shape)), *cells, f"{step.error:.1e}")


def _describe(sizes: Case) -> str:
    return (
        f"MoE layer: {counted(sizes.tokens, 'token')} of {sizes.hidden} values, "
        f"{sizes.top_k} of {sizes.experts} experts each, {sizes.intermediate} values between; "
        "FP8 e4m3 with block scales"
    )
