# SPDX-License-Identifier: Apache-2.0
"""
The sources of kernels as they were accepted: a few as whole files, to be read, all by their digest.

    python -m tests.pinned accept [NAME...]       accept what is rendered now; pin NAME, too
    python -m tests.pinned diff NAME [--at REV]   what changed since REV, by default the accepted
    python -m tests.pinned show NAME --at REV     the source as the commit REV renders it

`tests/goldens/digests.json` has a line for each kernel that is pinned by its name, and one for each
family: all kernels of an operation that may be chosen on a target, or a sample of those that are
legal. `tests/goldens/*.py` are the kernels to read. A digest does not give back its text: that is
rendered again by the commit that it was accepted in, which `git archive` unpacks.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from jitgen.codegen.render import render
from jitgen.config import Arch, Config, Layout
from jitgen.targets.legality import target
from tests.targets import OWN

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).with_name("goldens")
DIGESTS = FOLDER / "digests.json"

_RECORD: dict[str, dict[str, list[int | str]]] = json.loads(DIGESTS.read_text(encoding="utf-8"))
KERNELS, FAMILIES = _RECORD["kernels"], _RECORD["families"]
"""
By kernel its number of lines and its digest; by family the number of its kernels and their digest.
"""

NAMES = list(KERNELS)
WHOLE = sorted(path.stem for path in FOLDER.glob("*.py"))
"""Names of the kernels whose source is kept as a file."""

_SHOWN = 80
"""Lines of a difference that an error shows; the files have it all."""

_RENDER = """
import json, sys
from jitgen.codegen.render import render
from jitgen.config import Config
texts = {}
for name in json.load(sys.stdin):
    try:
        texts[name] = render(*Config.parse(name)).text
    except Exception as error:
        texts[name] = f"# {type(error).__name__}: {error}\\n"
json.dump(texts, sys.stdout)
"""


def text_of(name: str) -> str:
    """Return the source of a kernel as it is rendered now."""
    return render(*Config.parse(name)).text


def of_kernel(text: str) -> list[int | str]:
    """Return what is recorded of a source: its lines and its digest."""
    return [len(text.splitlines()), _digest(text)]


def of_family(texts: dict[str, str]) -> list[int | str]:
    """Return what is recorded of a family: the number of its kernels and the digest of all."""
    return [len(texts), _digest("".join(f"{name} {_digest(texts[name])}\n" for name in texts))]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def families() -> dict[str, Callable[[], Iterable[Config]]]:
    """
    Return what gives the configs of each family, which is named for operation and target: the
    sweeps of `tests.strategies`, which have every word of a config; of grouped GEMMs those to
    choose from, layout by layout.
    """
    from tests.candidates import every_candidate
    from tests.strategies import SWEEPS

    found: dict[str, Callable[[], Iterable[Config]]] = {}
    for arch in OWN:
        for layout in Layout:
            found[f"grouped_gemm {layout} {arch}"] = partial(every_candidate, arch, layout)
        for op, sweep in SWEEPS.items():
            if op != "grouped_gemm" and op in target(arch).operations:
                found[f"{op} {arch}"] = partial(sweep, arch)
    return found


def members(family: str) -> dict[str, str]:
    """Return the sources of a family's kernels as they are rendered now, by their names."""
    arch = Arch.parse(family.rpartition(" ")[2])
    return {config.name(arch): render(config, arch).text for config in families()[family]()}


def accept(names: Iterable[str] = ()) -> None:
    """Write the digests and the whole files anew; `names` are pinned from now on."""
    texts = {name: text_of(name) for name in dict.fromkeys([*NAMES, *names])}
    every = [*families()]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        digests = [*pool.map(_digest_of_family, every)]
    record = {
        "kernels": {name: of_kernel(text) for name, text in texts.items()},
        "families": dict(zip(every, digests, strict=True)),
    }
    parts = [
        f' "{part}": {{\n'
        + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in lines.items())
        + "\n }"
        for part, lines in record.items()
    ]
    written = DIGESTS.with_suffix(f".{os.getpid()}")
    written.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    written.replace(DIGESTS)  # processes that run tests side by side each accept
    for name in WHOLE:
        (FOLDER / f"{name}.py").write_text(texts[name], encoding="utf-8")


def _digest_of_family(family: str) -> list[int | str]:
    return of_family(members(family))


@cache
def at(revision: str, names: tuple[str, ...]) -> dict[str, str]:
    """
    Return the sources of kernels as a commit renders them, in a process of its own; of one that it
    cannot render a line that says why.
    """
    packed = _git("archive", revision, "--", ".", ":(exclude)tests", ":(exclude)docs")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="tar")
        out = subprocess.run(
            [sys.executable, "-c", _RENDER],
            input=json.dumps(names).encode(),
            env={**os.environ, "PYTHONPATH": folder},
            cwd=folder,
            capture_output=True,
            check=True,
        )
    found: dict[str, str] = json.loads(out.stdout)
    return found


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def accepted(names: tuple[str, ...], is_it: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """
    Return the accepted sources of kernels: those of HEAD, or of the last commit that accepted any,
    whichever `is_it` agrees to. Empty where neither has them, or there is no git.
    """
    for asked in (["rev-parse", "HEAD"], ["log", "-1", "--format=%H", "--", str(DIGESTS)]):
        try:
            texts = at(_git(*asked).decode().strip(), names)
        except (OSError, subprocess.CalledProcessError):
            continue
        if is_it(texts):
            return texts
    return {}


def explain(was: dict[str, str], now: dict[str, str], folder: Path) -> str:
    """
    Write both texts of each kernel that changed below `folder`; return which kernels they are and
    the first lines of their difference.
    """
    changed = [name for name in now if was.get(name) != now[name]]
    for name in changed:
        for side, texts in (("old", was), ("new", now)):
            (folder / side).mkdir(parents=True, exist_ok=True)
            if name in texts:
                (folder / side / f"{name}.py").write_text(texts[name], encoding="utf-8")
    lines = [f"not what was accepted: {', '.join(changed) or 'which kernels there are'}"]
    if was:
        lines += [f"old and new texts: {folder}", *islice(_difference(was, now, changed), _SHOWN)]
    else:
        lines += [
            f"new texts: {folder}; neither HEAD nor the last commit of {DIGESTS.name} renders the",
            "old ones: python -m tests.pinned diff NAME --at REV, with the commit that you know",
        ]
    lines.append("if that is meant: python -m tests.pinned accept")
    return "\n".join(lines)


def _difference(was: dict[str, str], now: dict[str, str], names: list[str]) -> Iterable[str]:
    for name in names:
        sides = was.get(name, "").splitlines(), now[name].splitlines()
        yield from difflib.unified_diff(*sides, f"old/{name}.py", f"new/{name}.py", lineterm="")


def explain_kernel(name: str, text: str, folder: Path) -> str:
    """Return `explain` of a pinned kernel; what HEAD has of all of them is rendered once."""
    was = accepted(tuple(NAMES), lambda texts: of_kernel(texts[name]) == KERNELS[name])
    return explain({name: was[name]} if was else {}, {name: text}, folder)


def explain_family(family: str, texts: dict[str, str], folder: Path) -> str:
    """Return `explain` of a family; other kernels than there were are its newcomers."""
    was = accepted(tuple(texts), lambda texts: of_family(texts) == FAMILIES[family])
    was = was or accepted(tuple(texts), lambda _: True)
    return f"{family} has {len(texts)} kernels: " + explain(was, texts, folder)


def main() -> int:
    """Return 1 where kernels changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.pinned", description=__doc__)
    parser.add_argument("what", choices=["accept", "diff", "show"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--at", metavar="REV")
    asked = parser.parse_args()
    names = tuple(asked.names)
    if asked.what == "accept":
        accept(names)
        return 0
    if asked.at:
        was = at(asked.at, names)
    else:
        known = {name: KERNELS.get(name) for name in names}
        was = accepted(names, lambda found: {n: of_kernel(found[n]) for n in found} == known)
        was = was or at("HEAD", names)
    if asked.what == "show":
        print(*was.values(), sep="\n", end="")
        return 0
    difference = list(_difference(was, {name: text_of(name) for name in names}, list(names)))
    print(*difference, sep="\n")
    return bool(difference)


if __name__ == "__main__":
    sys.exit(main())
