# SPDX-License-Identifier: Apache-2.0
"""
What torchrun starts for each rank: a child that warms up, which may be killed.

torchrun ends every rank where one has failed. So the rank that it sees only waits for its child,
which is the one that joins the job, and which is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main(folder: Path, doomed: int) -> None:
    """Run one rank; number `doomed` kills itself when it has compiled its first kernel."""
    if "RANK_CHILD" not in os.environ:
        command = [sys.executable, *sys.argv]
        subprocess.run(command, env={**os.environ, "RANK_CHILD": "1"}, check=False, timeout=200)
        return
    from torch import distributed

    import jitgen
    from jitgen.fleet.report import WarmUpRow, WarmUpState

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    def die(row: WarmUpRow, _done: int, _total: int) -> None:
        if rank == doomed and row.state is WarmUpState.COMPILED:
            os.kill(os.getpid(), signal.SIGKILL)

    names = json.loads((folder / "kernels.json").read_text())
    report = jitgen.warm_up(names, arch="cpu", jobs=1, patience_s=4.0, on_progress=die)
    document = {
        "states": {row.key: str(row.state) for row in report.rows},
        "errors": [row.error for row in report.rows if row.error],
        "lost": report.lost,
        "wall_s": report.wall_s,
        "manifest": report.manifest,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(document))
    if doomed < 0:  # else one that it would wait for is gone
        distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
