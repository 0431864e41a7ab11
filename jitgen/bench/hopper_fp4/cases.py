# SPDX-License-Identifier: Apache-2.0
"""What is measured, in the order in which it is: the cases beside this file, or of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jitgen.bench.cases import Case
from jitgen.config import Layout
from jitgen.errors import ConfigError
from jitgen.formats.mx32 import VALUES
from jitgen.support.documents import parse_json, read_bounded
from jitgen.support.frozen import frozen

PUBLIC = Path(__file__).with_name("cases.json")
_PEERS = "peers"


@frozen
class Step:
    """
    One case.

    Attributes:
        case: The sizes; the layout is ragged.
        has_peers: Whether others take part in it, if they are asked for: some compile at every new
            size for longer than all of jitgen's sides are timed.
    """

    case: Case
    has_peers: bool = False

    def __post_init__(self) -> None:
        if self.case.layout is not Layout.RAGGED:
            raise ConfigError(f"layout must be ragged in this suite (got {self.case.layout})")
        if self.case.k % VALUES:
            raise ConfigError(f"k must be a multiple of {VALUES}, as MXFP4's (got {self.case.k})")

    def __str__(self) -> str:
        """Return what ``--only`` is compared with: ``ragged 32 x 8 N4096 K7168``."""
        return str(self.case)


def load(path: Path = PUBLIC) -> tuple[Step, ...]:
    """
    Return the cases of a file in its order.

    Raises:
        ConfigError: The file cannot be read, or does not hold ragged cases of this suite.
    """
    try:
        document = parse_json(read_bounded(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} does not hold cases: {error}") from None
    if not isinstance(document, Mapping) or not isinstance(document.get("cases"), list):
        raise ConfigError(f"{path} does not hold cases: it needs an object with a list 'cases'")
    try:
        return tuple(_step(each) for each in document["cases"])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def plan(steps: Sequence[Step], only: Sequence[str] = ()) -> list[Step]:
    """Return the steps whose name has every text of `only`."""
    return [step for step in steps if all(text in str(step) for text in only)]


def _step(document: object) -> Step:
    """Return the step of a case with or without a word on peers."""
    if not isinstance(document, dict):
        return Step(case=Case.from_json(document))
    sizes = dict(document)
    has_peers = sizes.pop(_PEERS, False)
    if not isinstance(has_peers, bool):
        raise ConfigError(f"{_PEERS} must be true or false (got {has_peers!r})")
    return Step(case=Case.from_json(sizes), has_peers=has_peers)
