# SPDX-License-Identifier: Apache-2.0
"""
Whether kernels are what they were: digests of the PTX of everything that may be chosen.

    python -m tests.ptx check [NAME...]     compile, compare with tests/ptx/digests.json
    python -m tests.ptx record [NAME...]    accept what is compiled now

Of GPU targets it is the PTX that counts, of the CPU the object. A refactoring leaves them alone,
byte for byte; a change on purpose names the kernels that changed in its commit. Takes minutes
on two cores, so it is no test: it runs before and after a change to templates or rendering.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from jitgen.compile import toolchain, workers
from jitgen.config import Arch
from tests.ptx.kernels import names

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = Path(__file__).with_name("digests.json")


def digests(wanted: list[str], jobs: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the digests of kernels by their names, and the errors of those that failed."""
    os.environ["PYTHONPATH"] = str(ROOT)  # of the processes, whose folder is another one
    found, failed = {}, {}
    tasks = [{"name": name} for name in wanted]
    for outcome in workers.run("tests.ptx.kernels:digest", tasks, jobs=jobs, timeout_s=300):
        name = wanted[outcome.index]
        if outcome.result is None:
            failed[name] = outcome.error
        else:
            found[name] = outcome.result["digest"]
        if sys.stderr.isatty():
            print(f"\r{len(found)} of {len(wanted)}", end="", file=sys.stderr)
    return found, failed


def main() -> int:
    """Return 1 where kernels changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.ptx", description=__doc__)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("names", nargs="*", help="kernels; all where none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    found, failed = digests(asked.names or names(), asked.jobs)
    for name, error in failed.items():
        print(f"failed   {name}: {error}")
    # What the compiler's versions are, as other ones write other PTX.
    versions = {
        name: v
        for name, v in dict(toolchain.versions()).items()
        if name.startswith("nvidia-cutlass")
    }
    if asked.what == "record":
        kept = json.loads(DIGESTS.read_text(encoding="utf-8"))["kernels"] if asked.names else {}
        record = {"toolchain": versions, "kernels": dict(sorted({**kept, **found}.items()))}
        DIGESTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} kernels recorded")
        return bool(failed)
    record = json.loads(DIGESTS.read_text(encoding="utf-8"))
    if record["toolchain"] != versions:
        print(f"recorded with {record['toolchain']}, this is {versions}: nothing can be said")
        return 1
    before = record["kernels"]
    wanted = asked.names or sorted(before.keys() | found.keys())
    changed = [name for name in wanted if name in found and before.get(name) != found[name]]
    lost = [name for name in wanted if name not in found and name not in failed]
    for name in changed:
        print(f"{'changed' if name in before else 'new':8} {name}")
    for name in lost:
        print(f"lost     {name}")
    kept = len(found) - len(changed)
    print(f"{kept} of {len(wanted)} kernels are what they were, of {len(Arch)} targets")
    return bool(changed or lost or failed)


if __name__ == "__main__":
    sys.exit(main())
