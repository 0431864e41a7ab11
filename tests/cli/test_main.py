# SPDX-License-Identifier: Apache-2.0
"""The tree of commands, exit codes, errors, and what is imported when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jitgen.bench import OWN, REPORTS, SUITES
from jitgen.cli import main
from jitgen.errors import CompileError, ConfigError, JitgenError, PlanError
from tests.cli.conftest import Jitgen, process

NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a"
HEAVY = {"torch", "cutlass", "jinja2", "tvm_ffi"}


def commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    """Return the words of every command below `group`."""
    context = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += commands(command, *path, name)
        else:
            found.append((*path, name))
    return found


ALL = commands(main.cli)


def test_every_promised_command_is_there() -> None:
    promised = ["demo", "prewarm", "show", "verify", "configs", "select", "tune", "doctor"]
    promised += ["inspect", "serve", "token", "signer", "run", "diff", "schema", "lock"]
    cache = [
        "dir",
        "ls",
        "stats",
        "report",
        "explain",
        "quarantine",
        "verify",
        "prune",
        "rm",
        "clear",
        "pin",
        "unpin",
        "adopt",
        "push",
        "pull",
        "sign",
    ]
    bundle = ["export", "import", "inspect", "verify"]
    trust = ["init", "key", "add", "rotate", "revoke", "adopt", "push", "show"]
    trust += ["unrevoke", "public"]
    bench = [*SUITES, *REPORTS, *OWN, "all"]
    plan = ["ls", "show", "from-recording", "from-config"]

    groups = {"cache": cache, "plan": plan, "bench": bench, "bundle": bundle, "trust": trust}
    found = {(group, name) for group, names in groups.items() for name in names}
    assert {(name,) for name in promised} | found == set(ALL)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_help_and_json(jitgen: Jitgen, words: tuple[str, ...]) -> None:
    done = jitgen(*words, "--help")

    assert done.code == 0
    assert "--json" in done.out


def test_lists_of_commands_say_what_they_do_in_whole_sentences(jitgen: Jitgen) -> None:
    """Of long first sentences half was cut off."""
    for group in {words[:-1] for words in ALL}:
        _, _, listed = jitgen(*group, "--help").out.partition("Show this message")

        assert listed
        assert "..." not in listed


def test_help_lists_commands_without_importing_them() -> None:
    script = (
        "import sys\nfrom jitgen.cli.main import run\nrun(['--help'])\n"
        f"assert not {HEAVY | {'rich', 'jitgen.cli.demo', 'diskcache'}!r} & set(sys.modules)\n"
    )
    done = process(script=script)

    assert done.code == 0, done.err
    assert "prewarm" in done.out


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        "cache dir",
        "cache ls",
        "cache stats",
        "cache quarantine",
        "cache report",
        "cache verify",
        "cache prune",
        "cache explain grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a",
        "configs --arch sm_90a --layout ragged",
        "select -g 8 -m 64 -n 512 -k 512 --arch sm_90a",
        "prewarm deepseek-v3 --arch sm_90a --dry-run",
    ],
)
def test_light_commands_import_nothing_heavy(words: str, tmp_path: Path) -> None:
    words += f" -o {tmp_path}/page.html" * (words == "cache report")
    script = (
        f"import sys\nfrom jitgen.cli.main import run\ncode = run({words.split()!r})\n"
        f"heavy = {HEAVY | {'rich'}!r} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(code)\n"
    )
    done = process(script=script)

    assert done.code == 0, done.err


def test_version(jitgen: Jitgen) -> None:
    done = jitgen("--version")

    assert done.code == 0
    assert done.out.startswith("jitgen ")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("nope", "No such command 'nope'. Commands: demo, prewarm, "),
        ("dmeo", "No such command 'dmeo'. Did you mean 'demo'? Commands: demo, "),
        ("cache lst", "No such command 'lst'. Did you mean 'ls'? Commands: dir, ls, "),
        ("show", "Missing argument"),
        ("configs --arch sm_42", "'sm_42' is not known; allowed: cpu, sm_100a"),
        ("configs --arch sm_90", "sm_120a, sm_121a, sm_90a; did you mean sm_90a?"),
        ("prewarm deepseekv3", "which ends in .toml; did you mean deepseek-v3?"),
        ("configs --layout diagonal", "'diagonal' is not one of"),
        ("select -g 8 -m 8 -n 0 -k 8", "n must be an integer of at least 1 (got 0)"),
        ("show nonsense", "'nonsense' is no kernel name"),
        ("prewarm", "name a plan (deepseek-v2, "),
        (
            "prewarm no-such-plan",
            "no plan 'no-such-plan'; shipped plans: deepseek-v2, deepseek-v2-lite, ",
        ),
        ("cache prune --size tiny", "a size such as 4GiB"),
        ("bench nope", "'nope' is not one of"),
    ],
)
def test_usage_errors_exit_2_with_one_line(jitgen: Jitgen, words: str, complaint: str) -> None:
    done = jitgen(*words.split())

    assert done.code == 2
    assert done.out == ""
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert complaint in lines[0]
    assert complaint in jitgen(words, "--json").document["error"]["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JitgenError("it broke"), 1),
        (CompileError("kernel", "no registers"), 1),
        (ConfigError("bad words"), 2),
        (PlanError("bad plan"), 2),
    ],
)
def test_errors_are_one_line(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, error: JitgenError, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("jitgen.cache.Store.open", fail)
    human, machine = jitgen("cache", "stats"), jitgen("cache", "stats", "--json")

    assert (human.code, human.out) == (code, "")
    assert human.err == f"error: {error}\n"
    assert machine.code == code
    assert machine.document["error"] == {"type": type(error).__name__, "message": str(error)}


def test_bad_setting_is_a_usage_error(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_CACHE", "maybe")
    done = jitgen("cache", "stats")

    assert done.code == 2
    assert done.err == "error: JITGEN_CACHE='maybe' is not allowed: it must be rw or ro or off\n"


def test_unsafe_root_is_one_line(jitgen: Jitgen, cache_root: Path) -> None:
    cache_root.mkdir()
    cache_root.chmod(0o777)
    done = jitgen("cache", "ls")

    assert done.code == 1
    assert done.err.startswith("error: cache root ")
    assert done.err.count("\n") == 1


def test_interrupt_exits_130(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jitgen.cache.Store.open", interrupt)
    done = jitgen("cache", "stats")

    assert done.code == 130
    assert "Traceback" not in done.err


def test_broken_pipe_is_silent() -> None:
    """A reader that goes away early, as `head` does, ends the command without a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "jitgen.cli.main", "configs", "--arch", "cpu"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_library_warnings_are_talk(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    def warn(*_: object, **__: object) -> None:
        logging.getLogger("jitgen.cache").warning("the disk is %s", "odd")

    monkeypatch.setattr("jitgen.cache.Store.entries", lambda _: (warn(), iter(()))[1])
    done = jitgen("cache", "ls", "--json")

    assert "warning: the disk is odd\n" in done.err
    assert json.loads(done.out)["entries"] == []
