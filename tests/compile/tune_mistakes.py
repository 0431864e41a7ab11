# SPDX-License-Identifier: Apache-2.0
"""Real trials, in which the kernels of two tiles are no good."""

from __future__ import annotations

import os
import signal

from jitgen.autotune import trials
from jitgen.autotune.measure.clock import Call
from jitgen.autotune.measure.workload import Workload


class Trials(trials.Trials):
    """Kernels with 8 rows end their process; those with 16 leave the output as it is."""

    def _call(self, name: str, workload: Workload) -> Call:
        if "_t8x" in name:
            return lambda: os.kill(os.getpid(), signal.SIGABRT)
        if "_t16x" in name:
            return lambda: None
        return super()._call(name, workload)
