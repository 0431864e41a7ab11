# SPDX-License-Identifier: Apache-2.0
"""Shards: jobs that know nothing of each other prewarm every kernel, each once."""

from __future__ import annotations

import pytest

from jitgen import plans
from jitgen.errors import ConfigError
from jitgen.plans.prewarm import in_shard
from jitgen.plans.shard import Shard
from jitgen.runtime.spec import key

CONFIGS = plans.configs(plans.load("deepseek-v3"), "cpu")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_every_kernel_is_in_exactly_one(count: int) -> None:
    parts = [in_shard(CONFIGS, "cpu", f"{index}/{count}") for index in range(count)]

    assert sorted(sum(parts, ()), key=CONFIGS.index) == list(CONFIGS)


def test_a_shard_follows_from_the_key_alone() -> None:
    """A kernel that is added to a plan, or that only one job wants, must not move the others."""
    whole = in_shard(CONFIGS, "cpu", "1/3")
    half = in_shard(CONFIGS[::2], "cpu", "1/3")

    assert half == tuple(config for config in CONFIGS[::2] if config in whole)
    assert [Shard.parse("1/3").holds(key(config, "cpu")) for config in whole] == [True] * len(whole)


def test_parse() -> None:
    assert Shard.parse(" 2/8 ") == Shard(index=2, count=8)
    assert str(Shard(index=2, count=8)) == "2/8"


@pytest.mark.parametrize(
    "text", ["", "3", "8/8", "-1/8", "0/0", "1/", "/2", "a/b", "1/2/3", "1.0/2", "9" * 5000 + "/1"]
)
def test_a_bad_value_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not allowed: it must be i/n, for example 0/8"):
        Shard.parse(text)
