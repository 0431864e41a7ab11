# SPDX-License-Identifier: Apache-2.0
"""
The command lines of the documentation as a CPU runs them: what stands for the words that a reader
puts in, which lines take long, which end with a refusal here, and which nothing here can run.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import click

from jitgen.cli.main import cli
from tests import documents

HOST = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t32x64x128_c1x1_acc1_cpu"
HOPPER = "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x16x128_c1x1_acc1_sm_90a"

TYPED_IN = {
    "docs/inspect.md": "tests/compile/test_inspect_docs.py",
    "docs/kernel-engineer.md": "tests/compile/test_kernel_engineer_docs.py",
    "docs/plans.md": "tests/compile/test_plans_docs.py",
    "docs/tutorial-serving.md": "tests/compile/test_documents.py",
}
"""The test that runs all console blocks of a page as they stand, one line after the other."""

NOWHERE = {
    "bench layer --ranks 2": "tests/cli/test_bench_layer.py has two ranks and few tokens",
    "configs --arch acme_cpu --op scale_rows": "a plugin; tests/unit/test_installed.py installs it",
    "select --arch acme_cpu --op scale_rows --groups 3 --m 10 --set k=5": "the same plugin; "
    "tests/unit/test_installed.py installs it",
    "prewarm --config scale_rows_v4_acme_cpu": "the same plugin; tests/unit/test_installed.py "
    "installs it",
    "prewarm deepseek-v3 --arch sm_90a --dask tcp://scheduler:8786": "a Dask cluster; "
    "tests/service/test_dask.py has one",
    "prewarm --dask ADDRESS": "a Dask cluster; tests/service/test_dask.py has one",
    "serve /etc/jitgen/service.toml": "a certificate, and an end; "
    "tests/service/running.py has both",
    "signer --key /etc/jitgen/signing.pem --socket /run/jitgen/signer.sock": "an end; "
    "tests/server/test_signer.py ends one",
    "verify kernel.so --ptx kernel.ptx --symbol scale --cases cases.py": "compiled elsewhere; "
    "tests/compile/test_verify_files.py compiles it",
    "verify FILE.so --cases CASES.py": "compiled elsewhere; tests/compile/test_verify_files.py "
    "compiles it",
    "show activation_quantize_ragged_block128_reglu_sm_90a": "the activation that the page adds; "
    "tests/unit/test_every_value.py covers those that there are",
    "tune deepseek-v3": "a GPU: its sizes take hours on a CPU; tests/compile/test_tune.py has "
    "small ones",
}
"""
For command lines that need what no machine here has: what that is, and the test that has it, or
does with less.
"""

ENDS = {
    r"bench (hopper|blackwell|hopper-fp4|layer)\b(?!.*--(from|kernels)\b)": (1, "needs a"),
    r"bench (gradients|transformers)": (1, "needs a GPU"),
    r"bench choice\b(?!.*--(from|kernels)\b)": (1, "needs a GPU"),
    r"tune --export h200": (2, "nothing was measured for sm_90a here"),
    r"tune --export b200": (2, "nothing was measured for cpu here"),
    r"prewarm PLAN --check": (3, "would compile"),
    r"prewarm \S+ --arch sm_90a --check": (3, "would compile"),
    r"serve .*--check-config": (2, ""),
    r"diff A B": (1, ""),
    r"trust unrevoke": (1, "is not revoked by trust document"),
    r"select --device none": (2, "is not known; allowed: "),
}
"""
Exit code, and part of the output, of command lines that cannot end with 0 on a CPU or with an empty
cache.
"""

SLOW = (
    r"demo$|bench (?!hopper|blackwell|layer|gradients)",
    r"prewarm (?!PLAN)|configs .*(--arch|--all)",
    r"(verify|run|inspect|tune|bundle) |diff (?!NAME)|cache rm|show .*--(ptx|sass|resources)",
)
"""Lines that compile or emulate much, or measure: they are run at night."""


@dataclass(frozen=True)
class Line:
    """
    A command line of the documentation.

    Attributes:
        page: First page that has it.
        text: As it is written, from its first word on.
        is_name: Whether it stands in a sentence and names a command without what that needs.
    """

    page: str
    text: str
    is_name: bool

    @property
    def is_slow(self) -> bool:
        """Whether it is run at night."""
        return not self.is_name and any(re.match(pattern, self.text) for pattern in SLOW)

    @property
    def end(self) -> tuple[int, str]:
        """The exit code of the line on this machine, and a part of its output."""
        for pattern, end in ENDS.items():
            if re.match(pattern, self.text):
                return end
        return 0, ""


def lines() -> list[Line]:
    """Return every line that is not typed in elsewhere, once, with the first page that has it."""
    found: dict[str, Line] = {}
    typed = {_plain(text) for page in TYPED_IN for text in documents.shell_lines(page)}
    for page in documents.pages():
        for text in map(_plain, documents.shell_lines(page)):
            if text not in typed:
                found.setdefault(text, Line(page, text, is_name=False))
    for page in documents.pages():
        for text in map(_plain, documents.spoken_lines(page)):
            if text not in typed:
                found.setdefault(text, Line(page, text, is_name=_is_name(text)))
    return list(found.values())


def words(text: str, replaced: dict[str, str]) -> list[str]:
    """Return the words of a line, with what stands for those that a reader replaces."""
    text = text.partition(" > ")[0]
    for pattern, by in replaced.items():
        text = re.sub(rf"(?<![\w/.-]){pattern}(?![\w.-])", by, text)
    return shlex.split(text)


def path_of(text: str) -> list[str]:
    """Return the words that name the command of a line."""
    command: click.Command | None = cli
    path: list[str] = []
    for word in shlex.split(text):
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word.strip(","))
        path.append(word.strip(","))
    return path


def _plain(text: str) -> str:
    return " ".join(text.split())


def _is_name(text: str) -> bool:
    """Return whether a line of a sentence is only a command's name, or lacks what it needs."""
    path = path_of(text)
    rest = shlex.split(text)[len(path) :]
    command: click.Command = cli
    for word in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, text
        command = found
    if not rest or isinstance(command, click.Group):
        return True
    try:
        command.make_context(path[-1], rest, help_option_names=["-h", "--help"])
    except (click.MissingParameter, click.exceptions.BadOptionUsage):
        return True
    except (click.UsageError, click.exceptions.Exit):  # Exit: it has --help
        return False
    return False
