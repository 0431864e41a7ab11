# SPDX-License-Identifier: Apache-2.0
"""
The worker process of comparisons: it runs kernels of one operation on this machine's device,
compares their results with the right ones, and times them in turn.

It takes any kernel of the operation as source, edited ones as well. The calls are those that the
emulator runs (`jitgen.config.operation.Operation.samples`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jitgen.autotune.measure.clock import Batch, compete, compete_in_batches
from jitgen.autotune.measure.workload import LARGEST_ERROR, MEAN_ERROR
from jitgen.config import Arch, Config
from jitgen.runtime import kernel
from jitgen.runtime.session import current
from jitgen.runtime.spec import spec_of
from jitgen.runtime.tiers import build
from jitgen.verify import places
from jitgen.verify.verification import samples_of, sizes_of

_CASES = 4
"""Sets of operands that calls on a GPU use in turn, so that none finds its operands in L2."""

_SEED = 1


class KernelTrials:
    """
    Kernels of one operation on one device.

    Every method takes and returns JSON values, because its caller is another process.
    """

    def open(self, config: dict[str, Any], arch: str) -> None:
        """Prepare for kernels of the operation, layout and types of `config`."""
        self._config, self._arch = Config.from_json(config), Arch.parse(arch)
        self._samples = samples_of(self._config)
        self._device = "cuda" if self._arch.is_gpu else "cpu"
        self._tail: tuple[int, ...] = ()
        if self._arch.is_gpu:
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            self._tail = (int(properties.multi_processor_count),)
        self._functions: dict[str, Callable[..., Any]] = {}

    def load(self, title: str, config: dict[str, Any], text: str) -> str:
        """
        Load a kernel, called `title` from now on; returns its key.

        Args:
            title: Any name.
            config: Its config.
            text: Its source; empty: the source that the templates render.
        """
        spec = spec_of(Config.from_json(config), self._arch, text)
        entry, _ = build(current.get().loader.tiers, spec)
        self._functions[title] = kernel.load(entry)
        return spec.key

    def check(self, title: str, problem: str) -> list[dict[str, Any]]:
        """
        Run a kernel and compare its results with the right ones. Each problem is run with integers,
        whose sums are exact, and with random numbers; returns a row for each of these runs.

        Args:
            title: Title of the kernel.
            problem: Its sizes, as the operation spells them; empty for sizes with every edge.
        """
        return [
            self._checked(title, sizes, is_exact=is_exact)
            for sizes in self._sizes(problem)
            for is_exact in (True, False)
        ]

    def time(self, titles: list[str], problem: str) -> dict[str, Any]:
        """
        Return the times of kernels, which are called in turn, and the bytes of a call's tensors and
        its operations.

        On a GPU a graph makes several calls with separate operands after each flush of L2.
        """
        sizes, *_ = self._sizes(problem)
        count = _CASES if self._arch.is_gpu else 1
        cases = [self._made(sizes, is_exact=False, seed=seed) for seed in range(count)]
        calls = [[partial(self._call, title, case) for case in cases] for title in titles]
        if self._arch.is_gpu:
            found = compete_in_batches([Batch.capture(each) for each in calls])
        else:
            found = compete([each[0] for each in calls], on_gpu=False, rounds=7)
        tensors = [x for x in cases[0].tensors if isinstance(x, torch.Tensor)]
        return {
            "problem": _shown(sizes),
            "bytes": sum(x.nbytes for x in tensors),
            "flop": _flop(sizes),
            "kernels": [
                {
                    "title": title,
                    "time_us": times.median * 1e6,
                    "spread": times.spread,
                    "detail": times.detail(1e6, "us"),
                }
                for title, times in zip(titles, found, strict=True)
            ],
        }

    def _sizes(self, problem: str) -> tuple[Any, ...]:
        if problem:
            return (sizes_of(problem, self._config),)
        return tuple(self._samples.Sizes.of(self._config, self._arch))

    def _made(self, sizes: Any, *, is_exact: bool, seed: int) -> Any:
        return self._samples.make(
            self._config, sizes, is_exact=is_exact, seed=seed, device=self._device
        )

    def _call(self, title: str, case: Any) -> None:
        self._functions[title](*case.tensors, *self._tail)

    def _checked(self, title: str, sizes: Any, *, is_exact: bool) -> dict[str, Any]:
        case = self._made(sizes, is_exact=is_exact, seed=_SEED)
        self._call(title, case)
        frobenius, largest = case.errors()
        where = list(places.of_case(case, self._samples.tile(self._config)))
        wrong = case.wrong()
        if not is_exact and self._arch.is_gpu:  # a tensor core keeps fewer bits than `wrong` asks
            is_right = frobenius <= MEAN_ERROR and largest <= LARGEST_ERROR
            wrong, where = (0, []) if is_right else (wrong, where)
        return {
            "problem": _shown(sizes),
            "values": "integers" if is_exact else "random",
            "right": wrong == 0,
            "wrong": wrong,
            "places": where,
            "frobenius": frobenius,
            "largest": largest,
        }


def _shown(sizes: Any) -> str:
    """Return sizes as text, without the SMs, which are those of an emulated GPU."""
    return str(sizes).removesuffix(f", {sizes.num_sms} SMs")


def _flop(sizes: Any) -> int:
    """Return the operations of a call that multiplies matrices; 0 of others, and where unknown."""
    rows, n, k = (getattr(sizes, name, None) for name in ("rows", "n", "k"))
    return 2 * sum(rows) * n * k if isinstance(rows, tuple) and n and k else 0
