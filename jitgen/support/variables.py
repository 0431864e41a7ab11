# SPDX-License-Identifier: Apache-2.0
"""
Every JITGEN_* variable: one table, which docs/settings.md shows. `jitgen.settings` reads it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jitgen.errors import SettingError
from jitgen.support import values


class NoHomeFolder(SettingError):
    """The cache has no place: JITGEN_CACHE_DIR is not set, and the user has no home folder."""


def _cache_root() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "jitgen"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise NoHomeFolder(
            f"user {os.getuid()} has no home folder (HOME is no absolute path, or is not set and "
            "no account has this number), so there is no place for the kernel cache; set "
            "JITGEN_CACHE_DIR"
        )
    return home / ".cache" / "jitgen"


class Setting(NamedTuple):
    """
    One row of the table of variables.

    Attributes:
        name: Python name; the variable is ``JITGEN_`` and the name in capitals.
        default: The value if nothing is set, or a function that returns it.
        parse: Text to value; raises ValueError with the allowed values.
        kind: The type as the table states it.
        help: One sentence for the table.
        shown_default: The default as the table states it.
        separator: The separator of several values.
    """

    name: str
    default: object
    parse: Callable[[str], object]
    kind: str
    help: str
    shown_default: str
    separator: str = os.pathsep

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"JITGEN_{self.name.upper()}"


TABLE: tuple[Setting, ...] = (
    Setting(
        name="cache_dir",
        default=_cache_root,
        parse=values.absolute,
        kind="path",
        shown_default="`$XDG_CACHE_HOME/jitgen`, else `~/.cache/jitgen`",
        help="Root of the disk cache; it must belong to you, and no other user may write there.",
    ),
    Setting(
        name="base",
        default=(),
        parse=values.folders,
        kind="paths",
        shown_default="none",
        help="Roots of caches that are read and never written, such as an image's, separated by "
        "`:`; searched after `JITGEN_CACHE_DIR`, in this order.",
    ),
    Setting(
        name="trust_shared",
        default=(),
        parse=values.folders,
        kind="paths",
        shown_default="none",
        help="Folders, separated by `:`, that are used although others may write to them, such as "
        "Kubernetes volumes: everyone who can write there can run code with your rights.",
    ),
    Setting(
        name="remote",
        default=(),
        parse=values.remotes,
        kind="URLs",
        separator=",",
        shown_default="none",
        help="Caches that machines share, separated by `,`, from which kernels are fetched that no "
        "base has: `s3://`, `gs://`, `az://`, `file://`, `https://`. See docs/signing.md.",
    ),
    Setting(
        name="service",
        default="",
        parse=values.service,
        kind="URL",
        shown_default="none",
        help="The compile service, which is asked last for a kernel, and compiles it if it does "
        "not have it.",
    ),
    Setting(
        name="verify",
        default="remote",
        parse=values.choice("off", "remote", "always"),
        kind="`off`, `remote`, `always`",
        shown_default="`remote`",
        help="Which kernels are loaded only if they are signed: none; fetched ones; all, also "
        "those in the cache's own root, to which others may then write.",
    ),
    Setting(
        name="trust",
        default=None,
        parse=values.file,
        kind="path",
        shown_default="none",
        help="The trust document, which says which signing keys are valid; see `jitgen trust`.",
    ),
    Setting(
        name="token_file",
        default=None,
        parse=values.file,
        kind="path",
        shown_default="none",
        help="File with the token for the compile service; the token is sent over TLS, and without "
        "TLS only to this host.",
    ),
    Setting(
        name="cache",
        default="rw",
        parse=values.choice("rw", "ro", "off"),
        kind="`rw`, `ro`, `off`",
        shown_default="`rw`",
        help="Whether the disk cache is written, only read, or not used.",
    ),
    Setting(
        name="cache_size",
        default=2 * 2**30,
        parse=values.parse_size,
        kind="size",
        shown_default="`2GiB`",
        help="Size above which the least recently used entries are dropped; 0: no limit.",
    ),
    Setting(
        name="on_miss",
        default="compile",
        parse=values.choice("compile", "fallback", "error"),
        kind="`compile`, `fallback`, `error`",
        shown_default="`compile`",
        help="What a call does if its kernel is not compiled: compile it; run the best other "
        "compiled kernel for the problem while a worker process compiles it (and compile it "
        "if there is none); raise an error.",
    ),
    Setting(
        name="compile",
        default="auto",
        parse=values.choice("auto", "process", "worker"),
        kind="`auto`, `process`, `worker`",
        shown_default="`auto`",
        help="Where a call compiles: in this process, but in a separate one with "
        "`JITGEN_ON_MISS=fallback`, if other code imported the compiler, or if compiling here "
        "fails; only in this process; only in a separate one, so that the compiler cannot end "
        "this process.",
    ),
    Setting(
        name="arch",
        default=None,
        parse=str,
        kind="target",
        shown_default="the GPU's, else `cpu`",
        help="Target of `get_kernel`, `select` and the command line when none is named.",
    ),
    Setting(
        name="device",
        default="",
        parse=str,
        kind="name",
        shown_default="the GPU at hand; of plans all that are known",
        help="Device that kernels are chosen for, such as `NVIDIA H100 PCIe`; `--device` of "
        "`select`, `prewarm` and others has the same effect. If it is not set, calls choose "
        "for this machine's GPU (for an unknown GPU as for the first device of its target), "
        "and plans for every device of their target.",
    ),
    Setting(
        name="select",
        default="dynamic",
        parse=values.choice("dynamic", "static", "passes"),
        kind="`dynamic`, `static`, `passes`",
        shown_default="`dynamic`",
        help="How the kernel of a grouped GEMM is chosen: by measurements and the cost model; by "
        "the target's table of rows, the same for all of its devices; the smallest tile with "
        "the fewest passes.",
    ),
    Setting(
        name="min_latency",
        default=False,
        parse=values.flag,
        kind="`0`, `1`",
        shown_default="`0`",
        help="Whether grouped GEMMs of at most 8 rows a group use the kernel of least latency, if "
        "neither the call nor the plan says so.",
    ),
    Setting(
        name="numerics",
        default="fast",
        parse=values.choice("fast", "invariant"),
        kind="`fast`, `invariant`",
        shown_default="`fast`",
        help="Whether the bits of a row may depend on the batch and on the chosen kernel, if "
        "neither the call nor the plan says so. See docs/numerics.md.",
    ),
    Setting(
        name="check",
        default=False,
        parse=values.flag,
        kind="`0`, `1`",
        shown_default="`0`",
        help="Whether each call checks the values of `offs`, `m_indices` and `masked_m` before its "
        "launch, which waits for the device; nothing is checked while a CUDA graph is "
        "captured. See docs/torch.md.",
    ),
    Setting(
        name="plugins",
        default=(),
        parse=values.names,
        kind="names",
        separator=",",
        shown_default="none",
        help="Installed distributions, separated by `,`, whose targets and operations are loaded: "
        "their code runs in every process that uses jitgen.",
    ),
    Setting(
        name="override",
        default=None,
        parse=values.absolute,
        kind="path",
        shown_default="none",
        help="Folder with edited kernels, `*.py`: each replaces the kernel of the config that it "
        "names, and runs with your rights. See docs/kernel-engineer.md.",
    ),
    Setting(
        name="jobs",
        default=0,
        parse=values.number(
            int, math.inf, "a whole number, 0 for as many as cores and memory allow"
        ),
        kind="count",
        shown_default="`0`: by cores and free memory",
        help="Compile processes of a prewarm.",
    ),
    Setting(
        name="max_kernels",
        default=0,
        parse=values.number(int, math.inf, "a whole number, 0 for no limit"),
        kind="count",
        shown_default="`0`: no limit",
        help="Number of distinct kernels that one process should need: the first kernel beyond it "
        "is a warning, and each one is an event. It is also the default of `--budget` of "
        "`prewarm`, which counts the kernels of all devices and fails if there are more.",
    ),
    Setting(
        name="lock_timeout",
        default=120.0,
        parse=values.seconds(values.MAX_WAIT_S),
        kind="seconds",
        shown_default="`120`",
        help="How long to wait for a process that compiles the same kernel; after that this "
        "process compiles the kernel itself.",
    ),
    Setting(
        name="compile_timeout",
        default=300.0,
        parse=values.seconds(values.MAX_WAIT_S),
        kind="seconds",
        shown_default="`300`",
        help="How long one compile in a separate process may take.",
    ),
    Setting(
        name="record",
        default=None,
        parse=values.file,
        kind="path",
        shown_default="none",
        help="File beside which each process writes the counts of its calls, with its process id "
        "in the name; see docs/plans.md.",
    ),
    Setting(
        name="max_workspace",
        default=2 * 2**30,
        parse=values.parse_size,
        kind="size",
        shown_default="`2GiB`",
        help="Most memory that a `grouped_gemm` with prepacked weights may take for unpacked "
        "weights while it runs; 0: never unpack them.",
    ),
    Setting(
        name="failure_ttl",
        default=86400.0,
        parse=values.seconds(values.MAX_TTL_S),
        kind="seconds",
        shown_default="`86400`",
        help="How long a failed compile is remembered; 0 forgets at once.",
    ),
)

OTHERS = ("JITGEN_GPU_CACHE", "JITGEN_CHAOS_MARK")
"""Variables that only tests read."""
