# SPDX-License-Identifier: Apache-2.0
"""The text of docs/settings.md: jitgen's own table, and what else is read from the environment."""

from __future__ import annotations

from jitgen.settings import TABLE

ELSEWHERE = {
    "CC": "the C compiler that links kernels and builds the emulator's host part, else `cc`, "
    "`gcc`, `clang`; calls of `jitgen.emulator` itself take only `CC` or `cc`",
    "CUTE_DSL_*": "of the compiler: hidden from it while jitgen compiles, because most change the "
    "code and no key records them; `CUTE_DSL_LIBS` is not, nor in this process "
    "`CUTE_DSL_CACHE_DIR` and `CUTE_DSL_DISABLE_FILE_CACHING`",
    "XDG_CACHE_HOME": "the cache is `jitgen/` in this folder, if `JITGEN_CACHE_DIR` is not set",
    "HOME": "the cache is `.cache/jitgen/` in this folder, if neither of these is set",
    "AWS_ENDPOINT_URL": "if it begins with `http://`, `JITGEN_REMOTE=s3://...` may use it without "
    "TLS; obstore reads this and the other `AWS_*` variables",
    "VLLM_PLUGINS": "vLLM loads jitgen if this names `jitgen`",
    "SGLANG_PLUGINS": "SGLang loads jitgen if this names `jitgen`",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "set by SGLang for "
    "`--enable-deterministic-inference`: `1` or `true` keeps SGLang's own experts unless "
    "`JITGEN_NUMERICS=invariant` is set",
    "LOCAL_RANK, LOCAL_WORLD_SIZE": "set by torchrun: `jitgen.warm_up` divides this machine's "
    "cores among so many ranks, which share its cache",
    "PYTHONPATH": "passed on to the processes in which a compile service compiles",
    "TERM": "`dumb` turns progress bars off",
}
"""Variables of other programs that jitgen reads."""

_TEXT = """\
# Settings

The first of these that sets a value counts: a `jitgen.Session`, the program
(`jitgen.settings.on_miss = "error"`), the environment variable, the default. A value that is not
allowed is an error that names the variable.
The compile service has settings of its own: [service.md](service.md).

| variable | in Python | type | default | meaning |
|---|---|---|---|---|
{own}

## Other variables that jitgen reads

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
