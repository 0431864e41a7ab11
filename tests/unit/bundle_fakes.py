# SPDX-License-Identifier: Apache-2.0
"""A small plan, a store that serves it, and its bundle, for the tests of bundles."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.bundle.export import export, wanted
from jitgen.cache import Store
from jitgen.plans import Plan, load
from tests.unit.fleet_fakes import CPU, record
from tests.unit.store_fakes import fake_files

PLAN = """
[[problems]]
layout = "ragged"
groups = 8
rows_per_group = { min = 1, max = 512 }
matrix = [{ n = 256, k = 512 }]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan with a handful of kernels."""
    file = tmp_path / "small.toml"
    file.write_text(PLAN)
    return load(file)


@pytest.fixture
def store(tmp_path: Path, plan: Plan) -> Store:
    """A store with every kernel of the plan, none of them compiled."""
    made = Store(tmp_path / "builder", "rw")
    for number, spec in enumerate(wanted([plan], [CPU], made)):
        made.publish(record(spec), fake_files(number))
    return made


@pytest.fixture
def path(tmp_path: Path, plan: Plan, store: Store) -> Path:
    """The bundle of the plan."""
    made = tmp_path / "small.tar"
    export([plan], [CPU], made, store)
    return made
