# SPDX-License-Identifier: Apache-2.0
"""
Measure the selector's candidates on this machine's device, and keep the winners.

For each problem a worker process verifies and times the candidates. If a kernel hangs, crashes or
is wrong, only this process is lost, and the kernel is never chosen again. Measurements are cached
for each problem; from then on they decide the choice, before the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.support.lazy import importing

if TYPE_CHECKING:
    from jitgen.autotune.report import TuningReport, TuningRow, TuningState
    from jitgen.autotune.table import Imported, export_table, import_table
    from jitgen.autotune.tuner import tune

__all__ = [
    "Imported",
    "TuningReport",
    "TuningRow",
    "TuningState",
    "export_table",
    "import_table",
    "tune",
]

__getattr__ = importing(
    __name__,
    {
        "Imported": ".table",
        "TuningReport": ".report",
        "TuningRow": ".report",
        "TuningState": ".report",
        "export_table": ".table",
        "import_table": ".table",
        "tune": ".tuner",
    },
)
