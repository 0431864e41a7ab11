# SPDX-License-Identifier: Apache-2.0
"""The text of docs/settings.md: jitgen's own table, and what else is read from the environment."""

from __future__ import annotations

from jitgen.settings import TABLE

ELSEWHERE = {
    "CC": "the C compiler that links kernels and builds the emulator's host part, else `cc`, "
    "`gcc`, `clang`",
    "XDG_CACHE_HOME": "where `jitgen/` is the cache, if `JITGEN_CACHE_DIR` is not set",
    "HOME": "where `.cache/jitgen/` is the cache, if neither is set",
    "AWS_ENDPOINT_URL": "an `http://` address there lets `JITGEN_REMOTE=s3://...` speak to it; "
    "how keys are found is obstore's affair",
    "VLLM_PLUGINS": "names `jitgen` where vLLM is to load it",
    "SGLANG_PLUGINS": "names `jitgen` where SGLang is to load it",
    "LOCAL_RANK, LOCAL_WORLD_SIZE": "of torchrun: `jitgen.warm_up` shares this machine's cores and "
    "cache among so many ranks",
    "PYTHONPATH": "kept for the processes in which a compile service compiles",
    "TERM": "`dumb` turns progress bars off",
}
"""What jitgen reads besides, none of it its own."""

_TEXT = """\
# Settings

Order: what a `jitgen.Session` says, what a program sets (`jitgen.settings.on_miss = "error"`), the
environment variable, the default. A value that is not allowed is an error that names the variable.
The compile service has settings of its own: [service.md](service.md).

| variable | in Python | type | default | meaning |
|---|---|---|---|---|
{own}

## Read besides

| variable | meaning |
|---|---|
{others}
"""


def page() -> str:
    """Return the page about settings."""
    own = [
        f"| `{each.variable}` | `settings.{each.name}` | {each.kind} | {each.shown_default} "
        f"| {each.help} |"
        for each in TABLE
    ]
    others = [
        f"| {', '.join(f'`{word}`' for word in name.split(', '))} | {text} |"
        for name, text in ELSEWHERE.items()
    ]
    return _TEXT.format(own="\n".join(own), others="\n".join(others))
