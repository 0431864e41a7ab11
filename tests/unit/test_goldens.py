# SPDX-License-Identifier: Apache-2.0
"""Generated files are the accepted ones, so that a change of a template shows what it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jitgen.config import Config, DType
from jitgen.config.plugins import OPERATIONS
from jitgen.targets.legality import target
from tests import pinned, strategies
from tests.targets import OWN


@pytest.fixture(scope="module", autouse=True)
def accept_if_asked() -> None:
    """ACCEPT_GOLDENS=1 accepts what is rendered now, as `python -m tests.pinned accept` does."""
    if os.environ.get("ACCEPT_GOLDENS"):
        pinned.accept()
        pytest.skip("accepted")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", pinned.NAMES)
def test_golden(name: str, tmp_path: Path) -> None:
    """The source is the accepted one; if not, old and new one are written out and compared."""
    text = pinned.text_of(name)

    if pinned.of_kernel(text) != pinned.KERNELS[name]:
        pytest.fail(pinned.explain_kernel(name, text, tmp_path), pytrace=False)


@pytest.mark.nightly
@pytest.mark.parametrize("family", pinned.families())
def test_family(family: str, tmp_path: Path) -> None:
    """All kernels of an operation that may be chosen, or many that are legal, are the accepted."""
    texts = pinned.members(family)

    if pinned.of_family(texts) != pinned.FAMILIES.get(family):
        pytest.fail(pinned.explain_family(family, texts, tmp_path), pytrace=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", pinned.WHOLE)
def test_a_kernel_to_read_is_the_one_that_is_pinned(name: str) -> None:
    text = (pinned.FOLDER / f"{name}.py").read_text(encoding="utf-8")

    assert pinned.of_kernel(text) == pinned.KERNELS[name]


def test_the_kernels_to_read_are_one_of_each_kind() -> None:
    """Every operation, every family of targets, FP4 weights and results in float16 are there."""
    kernels = [Config.parse(name) for name in pinned.WHOLE]
    families = {target(arch).family for _, arch in kernels}
    dtypes = {value for config, _ in kernels for value in _values(config.to_json())}

    assert {config.op for config, _ in kernels} == {*OPERATIONS.names()}
    assert families == {target(arch).family for arch in OWN}
    assert {DType.E2M1, DType.E4M3, DType.F16, DType.BF16} <= dtypes


def _values(document: object) -> list[object]:
    if isinstance(document, dict):
        return [found for value in document.values() for found in _values(value)]
    return [document]


def test_every_family_is_pinned() -> None:
    """A target or an operation that comes gets its digest from `python -m tests.pinned accept`."""
    assert {*strategies.SWEEPS} == {*OPERATIONS.names()}
    assert {*pinned.FAMILIES} == {*pinned.families()}
