# SPDX-License-Identifier: Apache-2.0
"""
Whether kernels are what they were: digests of the PTX of kernels that may be chosen.

    python -m tests.ptx record FILE [NAME...]    write the digests of what is compiled now to FILE
    python -m tests.ptx check FILE [NAME...]     compile, compare with FILE; by default all in it

Record on the commit that a change starts from, check on its own. FILE lies outside of the
repository: another compiler writes other PTX, so no record is good for longer than that. Of GPU
targets the PTX counts, of the CPU the object. All kernels take hours; ``--sample 60`` takes as many
of each operation and target as far as there are, some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from jitgen.compile import toolchain, workers
from tests.ptx.kernels import names, sample

ROOT = Path(__file__).resolve().parents[2]


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


def _versions() -> dict[str, str]:
    """Return the compiler's versions, as other ones write other PTX."""
    every = dict(toolchain.versions())
    return {name: v for name, v in every.items() if name.startswith("nvidia-cutlass")}


def record(file: Path, wanted: list[str], jobs: int) -> int:
    """Write the digests of kernels to `file`; return 1 where one failed."""
    found, failed = digests(wanted, jobs)
    _say_failed(failed)
    document = {"toolchain": _versions(), "kernels": dict(sorted(found.items()))}
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} kernels recorded in {file}")
    return int(bool(failed))


def check(file: Path, wanted: list[str], jobs: int) -> int:
    """Compare kernels with those that `file` records; return 1 where one is not what it was."""
    document = json.loads(file.read_text(encoding="utf-8"))
    if document["toolchain"] != _versions():
        print(f"recorded with {document['toolchain']}, this is {_versions()}: nothing can be said")
        return 1
    before = document["kernels"]
    wanted = wanted or list(before)
    if unknown := [name for name in wanted if name not in before]:
        print(f"not recorded in {file}: {', '.join(unknown)}")
        return 1
    found, failed = digests(wanted, jobs)
    _say_failed(failed)
    changed = [name for name in found if found[name] != before[name]]
    for name in changed:
        print(f"changed  {name}")
    print(f"{len(found) - len(changed)} of {len(wanted)} kernels are what they were")
    return int(bool(changed or failed))


def _say_failed(failed: dict[str, str]) -> None:
    for name, error in failed.items():
        print(f"failed   {name}: {error}")


def main() -> int:
    """Return 1 where kernels changed or failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.ptx",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("file", type=Path, help="the record; outside of the repository")
    parser.add_argument("names", nargs="*", help="kernels; all where none is named")
    parser.add_argument("--sample", type=int, metavar="N", help="N kernels, evenly over families")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if asked.what == "check":
        if asked.sample:
            parser.error("a check compares what was recorded: --sample belongs to record")
        return check(asked.file, asked.names, asked.jobs)
    wanted = asked.names or names()
    return record(asked.file, sample(wanted, asked.sample or len(wanted)), asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
