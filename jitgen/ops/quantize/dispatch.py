# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Arch, Config, Layout
from jitgen.config.quantize import Format, QuantizeConfig, QuantizeProblem, Rounding
from jitgen.errors import InputError
from jitgen.formats import find_format
from jitgen.formats.atoms import Atoms
from jitgen.formats.protocol import Rows
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, prepared
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require, rules, size_refusal, target

Result = tuple[Tensor, Tensor]

COLUMNS_OF_LOAD = 8
"""What strides of x are multiples of, in elements: 16 bytes."""


@frozen
class Call:
    """
    The arguments of a call, which the CPU's functions have found right.

    Attributes:
        x: What is quantised.
        offs: (G,) int32, for ragged rows.
        masked_m: (G,) int32, for masked ones.
        global_scale: (1,) or (G,) float32, for NVFP4.
        format: What values become.
        rounding: How scales that are powers of two are found.
        out: Where q and scale go; None: to new tensors.
    """

    x: Tensor
    offs: Tensor | None
    masked_m: Tensor | None
    global_scale: Tensor | None
    format: Format
    rounding: Rounding
    out: Result | None = None

    @property
    def layout(self) -> Layout:
        """How rows belong to groups."""
        if self.offs is not None:
            return Layout.RAGGED
        return Layout.CONTIGUOUS if self.masked_m is None else Layout.MASKED

    @property
    def groups(self) -> Tensor | None:
        """What says which rows count; None where all do."""
        return self.masked_m if self.offs is None else self.offs

    @property
    def written(self) -> tuple[str, ...]:
        """The names of tensors that it writes."""
        return () if self.out is None else ("out[0]", "out[1]")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor among them, by its name, in the order in which warm calls ask a guard."""
        groups = "masked_m" if self.offs is None else "offs"
        found = {"x": self.x, groups: self.groups, "global_scale": self.global_scale}
        if self.out is not None:
            found |= {"out[0]": self.out[0], "out[1]": self.out[1]}
        return {name: each for name, each in found.items() if each is not None}


@frozen
class Facts:
    """
    What a family of launches asks of a call.

    Attributes:
        arch: The target.
        layout: How rows belong to groups.
        groups: Number of groups, or of matrices.
    """

    arch: Arch
    layout: Layout
    groups: int


@frozen
class Launch(AnyLaunch):
    """
    What a call needs besides its tensors.

    Attributes:
        q_dtype: Element type of q.
        per_element: Values in an element of q.
        form: The format of the scales.
        num_groups: Groups of ragged rows; 0 for others.
        lead: 1 where x is one matrix and kernels ask for several, else 0.
    """

    q_dtype: torch.dtype
    per_element: int
    form: Atoms
    num_groups: int
    lead: int

    def call(
        self,
        x: Tensor,
        groups: Tensor | None,
        global_scale: Tensor | None,
        out: Result | None = None,
    ) -> Result:
        """Launch the kernel; return q and scales, new or `out`."""
        if out is None:
            *front, size_k = x.shape
            shape = self.form.a_shape(Rows(tuple(front), self.num_groups), size_k)
            q = x.new_empty((*front, size_k // self.per_element), dtype=self.q_dtype)
            scale = x.new_empty(shape, dtype=self.form.dtype)
        else:
            q, scale = out
        given: list[Tensor] = [x, q, scale]
        if self.lead:
            given = [each.unsqueeze(0) for each in given]
        if groups is not None:
            given.insert(1, groups)
        if global_scale is not None:
            given.append(global_scale)
        self.function(*given, *self.tail)
        return q, scale


def shapes_of(
    form: Format, x: Tensor, offs: Tensor | None
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Return shape and type of q and of its scales; sizes of a tracer's `x` may be symbols."""
    *front, size_k = x.shape
    rows = Rows(tuple(front), 0 if offs is None else offs.shape[0])
    of_scales = find_format(form.scales)
    is_packed = form is not Format.MXFP8
    q = (*front, size_k // 2 if is_packed else size_k)
    return (
        (q, torch.uint8 if is_packed else torch.float8_e4m3fn),
        (of_scales.a_shape(rows, size_k), of_scales.dtype),
    )


def problem_of(call: Call) -> QuantizeProblem:
    """Return what a kernel is chosen for: groups share ragged rows, and masked ones are full."""
    x, groups = call.x, call.groups
    count = (x.shape[0] if x.dim() == 3 else 1) if groups is None else groups.shape[0]
    rows = x.shape[0] if x.dim() == 2 else x.shape[0] * x.shape[1]
    return QuantizeProblem(
        layout=call.layout,
        groups=max(1, count),
        m=rows,
        k=x.shape[-1],
        format=call.format,
        rounding=call.rounding,
    )


def server(call: Call, session: Session) -> Device | None:
    """
    Return the GPU that has a kernel for a call; None where torch's operations do what is asked.

    They do on a CPU, for other types than bf16, sizes that no vectors fit, and x that is empty or
    does not lie in rows of 16 bytes.
    """
    x = call.x
    try:
        device = devices.find(x.device, session, "x")
    except InputError:  # nothing of jitgen's runs there, but torch does
        return None
    if not device.arch.is_gpu or "quantize" not in target(device.arch).operations:
        return None
    if x.dtype is not torch.bfloat16 or not x.numel() or not _is_readable(x, device.arch):
        return None
    problem = problem_of(call)
    if size_refusal(problem, device.arch) or not rules(device.arch, problem.op).candidates(problem):
        return None
    return device


def _is_readable(x: Tensor, arch: Arch) -> bool:
    """Say whether vectors can be loaded from `x`."""
    sides = zip(x.shape[:-1], x.stride()[:-1], strict=True)
    in_rows = x.stride(-1) == 1 and all(
        length == 1 or stride % COLUMNS_OF_LOAD == 0 for length, stride in sides
    )
    return in_rows and x.data_ptr() % rules(arch, "quantize").alignment == 0


def run(
    call: Call, device: Device, config: QuantizeConfig | Override | None, key: Key, session: Session
) -> Result:
    """
    Launch a kernel, and remember the launch under `key`.

    Raises:
        InputError: `config` is for something else.
        KernelMiss: The kernel is not compiled, and compiling is off or a graph is being captured.
        JitgenError: It cannot be compiled; see `Registry.get`.
    """
    launch = prepared(
        session,
        key,
        call.tensors,
        lambda: _prepare(call, device, config, session),
        written=call.written,
    )
    return launch.call(call.x, call.groups, call.global_scale, call.out)


def _prepare(
    call: Call, device: Device, config: QuantizeConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """Return the launch, the family that it belongs to, and its rows."""
    problem = problem_of(call)
    facts = Facts(arch=device.arch, layout=call.layout, groups=problem.groups)
    family = Family(arch=device.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        wanted, neighbours = _chosen(session, problem, device)
        family = Family.of(problem, facts, None)
    else:
        wanted = require_fit(config, call, device)
    function, served = device.entry(session, config or wanted, neighbours)
    form = find_format(call.format.scales)
    if not isinstance(form, Atoms):
        raise TypeError(f"the scales of {call.format} lie in no atoms")
    is_packed = call.format is not Format.MXFP8
    launch = Launch(
        function=function,
        tail=device.tail,
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        q_dtype=torch.uint8 if is_packed else torch.float8_e4m3fn,
        per_element=2 if is_packed else 1,
        form=form,
        num_groups=0 if call.offs is None else len(call.offs),
        lead=int(call.layout is Layout.CONTIGUOUS and call.x.dim() == 2),
    )
    return launch, family, call.x.shape[-2]


def _chosen(
    session: Session, problem: QuantizeProblem, device: Device
) -> tuple[QuantizeConfig, tuple[Config, ...]]:
    config, neighbours = chosen(session, problem, device.arch, "x")
    return config, neighbours  # type: ignore[return-value]


def require_fit(asked: object, call: Call, device: Device) -> QuantizeConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for a call like this.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    config: QuantizeConfig = forced(asked, QuantizeConfig, device.arch)
    wanted = QuantizeConfig(
        layout=call.layout, format=call.format, rounding=call.rounding, tiling=config.tiling
    )
    if config != wanted:
        raise InputError(
            "config",
            f"must be for what is asked, {wanted.words()} (got one for {config.words()})",
        )
    require(config, device.arch)
    return config
