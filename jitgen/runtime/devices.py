# SPDX-License-Identifier: Apache-2.0
"""Devices of tensors (the CPU, a GPU, or an emulated GPU), and how kernels are called on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from jitgen.config import Arch, Config
from jitgen.errors import InputError
from jitgen.runtime import fallback
from jitgen.runtime.spec import plain
from jitgen.settings import settings

if TYPE_CHECKING:
    import torch

    from jitgen.runtime.session import Session
    from jitgen.runtime.spec import Wanted

Entry = Callable[..., object]

EXCHANGE_PART = 8
"""
While ranks exchange data, products leave one in `EXCHANGE_PART` of a GPU's SMs to the exchange, and
launch one CTA for each other SM. A CTA of a product fills an SM, so a further one would only start
when the exchange ends. On an H200 the exchange has 16 SMs; 8 CTAs fill the link.
"""


class Device(Protocol):
    """
    The device that a call runs on.

    Attributes:
        arch: The target of its kernels.
        tail: Arguments of entries after the tensors: on a GPU the number of SMs, for one CTA on
            each.
    """

    @property
    def arch(self) -> Arch:
        """Target of the kernels that run on the device."""
        ...

    @property
    def tail(self) -> tuple[int, ...]:
        """Arguments of entries after the tensors; see `Device`."""
        ...

    def entry(
        self, session: Session, config: Wanted, neighbours: Sequence[Config]
    ) -> tuple[Entry, Config]:
        """
        Return the entry of a kernel for tensors on this device, and its config: `config` or a
        neighbour.

        Args:
            session: The session that provides kernels.
            config: The wanted config, or an edited kernel, of which the config is returned.
            neighbours: Configs that may serve instead, best first.
        """
        ...


class Cpu:
    """The CPU of the host, as a device."""

    arch = Arch.CPU
    tail = ()

    def entry(
        self, session: Session, config: Wanted, neighbours: Sequence[Config]
    ) -> tuple[Entry, Config]:
        """Return the entry of a kernel, and its config."""
        return _served(session, config, neighbours, self.arch)


class Cuda(NamedTuple):
    """One GPU of this machine."""

    arch: Arch
    tail: tuple[int, ...]
    number: int
    is_alone: bool

    def sparing(self) -> Cuda:
        """Return the same GPU with the SMs that exchanges leave to products."""
        return self._replace(tail=tuple(each - each // EXCHANGE_PART for each in self.tail))

    def entry(
        self, session: Session, config: Wanted, neighbours: Sequence[Config]
    ) -> tuple[Entry, Config]:
        """
        Return the entry of a kernel, and its config. With several GPUs, each call makes this one
        the current one.
        """
        function, served = _served(session, config, neighbours, self.arch)
        return (function if self.is_alone else on_device(function, self.number)), served


class Emulated(NamedTuple):
    """
    An emulated GPU: it takes tensors in host memory.

    Attributes:
        arch: The emulated target.
        num_sms: Number of its SMs.
        function: Takes a config and returns a function with the arguments of the kernel's entry.
    """

    arch: Arch
    num_sms: int
    function: Callable[[Wanted], Entry]

    @property
    def tail(self) -> tuple[int, ...]:
        """The argument of entries after the tensors: the number of SMs."""
        return (self.num_sms,)

    def entry(
        self, _session: Session, config: Wanted, _neighbours: Sequence[Config]
    ) -> tuple[Entry, Config]:
        """Return the function that runs `config` in the emulator, and the config."""
        return self.function(config), plain(config)


_CPU = Cpu()


def find(device: torch.device, session: Session, name: str = "a") -> Device:
    """
    Return the `Device` that serves tensors on `device`; errors call the argument `name`.

    Raises:
        InputError: jitgen has no kernels for the device.
    """
    import torch

    if device.type == "cpu":
        return session.emulated or _CPU
    if device.type != "cuda" or torch.version.hip:
        raise InputError(name, f"must be on {_known()} (got device {device})")
    found = _cuda(device, name) if torch.cuda.is_available() else _absent(device, name)
    return found.sparing() if session.spares_sms else found


def _known() -> str:
    return f"a CPU or an NVIDIA GPU of {', '.join(arch for arch in Arch if arch.is_gpu)}"


def _absent(device: torch.device, name: str) -> Cuda:
    """
    Return an object for a GPU that this machine does not have; tensors of a tracer may be on one.
    """
    arch = Arch.parse(settings.arch) if settings.arch else Arch.CPU
    if not arch.is_gpu:
        raise InputError(
            name, f"is on {device}, but this machine has no GPU to ask what it is: set JITGEN_ARCH"
        )
    return Cuda(arch=arch, tail=(), number=device.index or 0, is_alone=True)


@cache
def _cuda(device: torch.device, name: str) -> Cuda:
    import torch

    capability = torch.cuda.get_device_capability(device)
    arch = Arch.of_capability(*capability)
    if arch is None:
        model = torch.cuda.get_device_name(device)
        raise InputError(
            name,
            f"must be on {_known()} (got {device}, {model}, compute capability "
            f"{capability[0]}.{capability[1]})",
        )
    num_sms = int(torch.cuda.get_device_properties(device).multi_processor_count)
    index = torch.cuda.current_device() if device.index is None else device.index
    is_alone = torch.cuda.device_count() == 1
    return Cuda(arch=arch, tail=(num_sms,), number=index, is_alone=is_alone)


def _served(
    session: Session, config: Wanted, neighbours: Sequence[Config], arch: Arch
) -> tuple[Entry, Config]:
    wanted = plain(config)
    if arch.is_gpu:
        session.tell_coverage()
    if neighbours and settings.on_miss == "fallback":
        kernel = fallback.serve(session.loader, wanted, neighbours, arch)
    else:
        kernel = session.loader.get(config, arch)
    return kernel.function, wanted if kernel.config == wanted else kernel.config


def on_device(function: Entry, index: int) -> Entry:
    """Return a version of `function` that runs on GPU `index`, even if another GPU is current."""
    import torch

    def call(*arguments: object) -> None:
        if torch.cuda.current_device() == index:
            function(*arguments)
            return
        with torch.cuda.device(index):
            function(*arguments)

    return call
