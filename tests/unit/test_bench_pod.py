# SPDX-License-Identifier: Apache-2.0
"""The suite of pods: its table, what it refuses to time, and the places that need no service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import pod
from jitgen.bench.pod import BUDGET_MS, LOCAL, Missing, Places, Side, Start, need, port_of, toml
from jitgen.remote.http import Server
from jitgen.remote.outcomes import Unreachable
from jitgen.server.settings import read_settings

OWN = Side(what=LOCAL, tier="disk", environment={})
FETCHED = Side(what="a remote", tier="remote", environment={}, has_budget=True)


def start(call_ms: float, import_s: float = 1.0) -> Start:
    return Start(seconds=import_s + call_ms / 1e3, call_s=call_ms / 1e3, cpu_s=call_ms / 2e3)


def test_what_a_place_costs_is_counted_round_by_round() -> None:
    """A round in which everything was slow, the import above all, says as much as the others."""
    rounds = [
        {LOCAL: start(50), "a remote": start(90)},
        {LOCAL: start(500, 9.0), "a remote": start(541, 3.0)},
        {LOCAL: start(60), "a remote": start(102)},
    ]

    first, second, beyond = pod.table([OWN, FETCHED], rounds, ["the service (no uvicorn)"])

    assert (first.value, second.value) == pytest.approx((1.06, 1.102))
    assert first.budget is None
    assert "not measured: the service (no uvicorn)" in first.detail
    assert (beyond.value, beyond.budget, beyond.ok) == (pytest.approx(41), BUDGET_MS, True)
    assert "20.5 ms of CPU" in beyond.detail


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"is_right": False, "tiers": ["remote"]}, "wrong result"),
        ({"is_right": True, "tiers": ["compiled"]}, "came from compiled"),
        ({"is_right": True, "tiers": ["remote", "compiled"]}, "came from remote, compiled"),
        ({"is_right": True, "tiers": []}, "came from nowhere"),
    ],
)
def test_wrong_results_and_other_places_are_not_timed(
    found: dict[str, object], complaint: str
) -> None:
    times = {"seconds": 1.0, "call_s": 0.1, "cpu_s": 0.1}

    with pytest.raises(WrongResult, match=complaint):
        pod.checked(FETCHED, {**found, **times})


def test_a_place_whose_packages_are_not_installed_is_missing() -> None:
    with pytest.raises(Missing, match=r"without uvicorn; run: pip install 'jitgen\[server\]'"):
        need(("json", "uvicorn"), "jitgen[server]", lambda name: name != "uvicorn" or None)


def test_each_side_goes_first_in_turn() -> None:
    turns = [[number for number, _ in turn] for turn in pod._turns([OWN, FETCHED, OWN], 4)]

    assert turns == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_service_is_configured_as_its_guide_says(tmp_path: Path) -> None:
    """The file that the suite writes is one that `jitgen serve` reads; a log tells the port."""
    file, tokens = tmp_path / "service.toml", tmp_path / "tokens.toml"
    tokens.touch()
    tables = {
        "listen": {"port": 0},
        "store": {"root": f'{tmp_path}/"x"'},
        "access": {"tokens": str(tokens)},
    }
    file.write_text(toml(tables))

    found = read_settings(file)

    assert (found.listen.port, str(found.store.root)) == (0, f'{tmp_path}/"x"')
    lines = [{"event": "start"}, {"event": "ready", "port": 4711}]
    log = "\n".join(map(json.dumps, lines)).encode()
    assert (port_of(log), port_of(log[:-3])) == (4711, 0)


def test_website_gives_out_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the suite."""
    monkeypatch.setattr(Places, "_pushed", tmp_path)
    (tmp_path / "object").write_bytes(b"content")
    with Places(tmp_path) as places:
        url = places.website()["JITGEN_REMOTE"]
        session = Server(url).session()
        found, other = session.request("GET", "object", 100), session.request("GET", "other", 1000)

    assert (found.status, found.body, other.status) == (200, b"content", 404)
    with pytest.raises(Unreachable, match="refused"):
        Server(url).session().request("GET", "object", 100)
