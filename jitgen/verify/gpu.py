# SPDX-License-Identifier: Apache-2.0
"""An emulated GPU for `jitgen.grouped_gemm`, so that tests run without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jitgen.codegen.render import source_of
from jitgen.config import Arch
from jitgen.emulator import NUM_SMS, TIME_LIMIT_S, Artifact, Mode, Report, parse_modes
from jitgen.errors import ConfigError, EmulationError
from jitgen.runtime.devices import Emulated
from jitgen.runtime.session import Session, current
from jitgen.runtime.spec import plain, serving
from jitgen.runtime.tiers import readable
from jitgen.verify.artifacts import compiled_once, of_entry
from jitgen.verify.emulation import emulate

if TYPE_CHECKING:
    from jitgen.runtime.spec import Wanted


@contextmanager
def device(
    arch: Arch | str,
    *,
    modes: str | Mode | Sequence[str | Mode] = "eager",
    num_sms: int = NUM_SMS,
    time_limit_s: float = TIME_LIMIT_S,
) -> Iterator[list[Report]]:
    """
    Make `jitgen.grouped_gemm` run calls with tensors in host memory on an emulated GPU, in this
    context.

    Selection, validation and cache are those of the real GPU. A kernel that is not in the cache is
    compiled only for the emulator, once per process, and not published.

    Args:
        arch: A GPU target.
        modes: See `jitgen.emulate`; each call runs in all of them.
        num_sms: SMs of the GPU.
        time_limit_s: Seconds that one mode of one call may take.

    Yields:
        A list that gets a report for each call.

    Raises:
        EmulationError: From the call, if anything was found; the message is the report.
        ConfigError: `arch` is no GPU target.
    """
    target, chosen = Arch.parse(arch), parse_modes(modes)
    if not target.is_gpu:
        raise ConfigError(f"{target} kernels run on this machine as they are: name a GPU target")
    reports: list[Report] = []
    artifacts: dict[Wanted, Artifact] = {}

    def function(config: Wanted) -> Callable[..., object]:
        artifact = artifacts.get(config)
        if artifact is None:
            artifact = artifacts[config] = _artifact(config, target)

        def call(*arguments: object) -> None:
            report = emulate(
                artifact,
                *arguments,
                modes=chosen,
                num_sms=num_sms,
                time_limit_s=time_limit_s,
                settled=plain(config).settled,
            )
            reports.append(report)
            if not report.is_clean:
                raise EmulationError(str(report))

        return call

    gpu = Emulated(arch=target, num_sms=num_sms, function=function)
    with Session.emulating(gpu, like=current.get()):
        yield reports


def _artifact(config: Wanted, arch: Arch) -> Artifact:
    """
    Return the artifact of the cached kernel. If there is none, compile the library and the PTX
    together: a cached entry has no PTX, so that it would take a second compile.
    """
    spec = serving(config, arch)
    found = readable(current.get().loader.tiers, spec)
    if found is None:
        return compiled_once(source_of(spec.config, arch, spec.text))
    entry = found[0]
    return of_entry(entry, source_of(spec.config, arch, entry.source))
