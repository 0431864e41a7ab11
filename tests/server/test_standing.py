# SPDX-License-Identifier: Apache-2.0
"""A signing key that clients do not accept: told everywhere, and mended by what is signed again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import spec_of
from jitgen.server.check import checked
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from jitgen.signing.standing import State, standing
from tests.server.forging import signed
from tests.server.story import Story
from tests.service.test_trouble import until
from tests.service.trusting import DAY, sealed, trust_in
from tests.unit.store_fakes import fake_files, fake_meta

KEY = PrivateKey.generate()
CONFIG = GroupedGemmConfig(layout="masked", tile=Tile(m=8, n=64, k=128))
LATER = GroupedGemmConfig(layout="masked", tile=Tile(m=16, n=64, k=128))
WRONG: dict[State, dict[str, Any]] = {
    State.REVOKED: {"revoked_keys": {KEY.keyid: "stolen"}},
    State.EARLY: {"begins": DAY},
    State.OVER: {"begins": -2 * DAY, "ends": -DAY},
    State.DISOWNED: {"min_signed_at": DAY},
    State.EXPIRED: {"expires": -DAY},
}


class TestStanding:
    """One key in one document."""

    @pytest.mark.parametrize("state", WRONG)
    def test_refused(self, state: State) -> None:
        found = standing(KEY.keyid, trust_in(KEY, **WRONG[state]))

        assert (found.state, found.is_refused, found.ends) == (state, True, None)
        assert found.reason.endswith("until then every client refuses what the key signs")

    @pytest.mark.parametrize("state", [*WRONG, State.GOOD])
    def test_it_is_what_clients_say(self, state: State) -> None:
        """A signature that is made now counts if, and only if, the key stands well."""
        meta = fake_meta(1).with_files(fake_files(1))
        trust = trust_in(KEY, **WRONG.get(state, {}))
        verdict = judge(meta.encode(), signed(meta, KEY), trust)

        assert bool(verdict) is not standing(KEY.keyid, trust).is_refused

    def test_absent(self) -> None:
        found = standing(KEY.keyid, trust_in(PrivateKey.generate()))

        assert (found.state, found.is_refused) == (State.ABSENT, True)
        assert "jitgen trust add puts it there" in found.reason

    @pytest.mark.parametrize(
        ("ends", "expires", "says"),
        [
            (20 * DAY, 200 * DAY, "signs until"),
            (200 * DAY, 20 * DAY, "trust document 1 expires at"),
            (200 * DAY, 200 * DAY, ""),
        ],
    )
    def test_what_ends_soon_is_no_refusal(
        self, ends: timedelta, expires: timedelta, says: str
    ) -> None:
        found = standing(KEY.keyid, trust_in(KEY, ends=ends, expires=expires))

        assert not found.is_refused
        assert (found.state is State.ENDS_SOON) == bool(found.reason) == bool(says)
        assert says in found.reason
        assert found.ends is not None
        assert abs(found.ends - datetime.now(UTC) - min(ends, expires)) < timedelta(minutes=1)


class TestCheck:
    """``jitgen serve --check-config``."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> Path:
        """A file that is right but for the trust document, which is not there yet."""
        KEY.save(tmp_path / "key.pem")
        file = tmp_path / "service.toml"
        file.write_text(
            f'[store]\nroot = "{tmp_path}/cache"\n[access]\nanonymous = ["read"]\n'
            f'[signing]\nkey = "{tmp_path}/key.pem"\ntrust = "{tmp_path}/trust.json"\n'
        )
        return file

    @pytest.mark.parametrize("state", [*WRONG, State.ABSENT])
    def test_a_key_that_clients_refuse_is_a_mistake(self, config: Path, state: State) -> None:
        """It said that all was right."""
        keys = () if state is State.ABSENT else (KEY,)
        (config.parent / "trust.json").write_bytes(sealed(*keys, **WRONG.get(state, {})))
        errors, _ = checked(config)

        assert len(errors) == 1
        assert errors[0].startswith("signing.key: ")
        assert "every client refuses" in errors[0]

    def test_one_that_ends_soon_is_a_warning(self, config: Path) -> None:
        (config.parent / "trust.json").write_bytes(sealed(KEY, ends=DAY))
        errors, (warning,) = checked(config)

        assert errors == []
        assert warning.startswith(f"signing.trust: key {KEY.keyid[:12]} signs until ")

    def test_so_is_a_document_that_is_not_there(self, config: Path) -> None:
        """Then it is not known."""
        text = config.read_text()
        config.write_text(text[: text.index("trust =")] + '[replicas]\nshared = "file:///shared"\n')
        errors, warnings = checked(config)

        assert errors == []
        assert [line.split(":")[0] for line in warnings] == ["signing.trust", "replicas.shared"]

    def test_so_is_a_gate_whose_emulator_cannot_run(self, config: Path) -> None:
        """All was right, and then no kernel of a GPU was signed."""
        (config.parent / "trust.json").write_bytes(sealed(KEY))
        python = config.parent / "python"
        python.write_text(
            f'#!/bin/sh\ncase "$*" in *numpy*) exit 1;; esac\nexec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        tables = f'gate = "emulator"\n[[toolchains]]\npython = "{python}"\n'
        config.write_text(config.read_text() + tables)
        (line,), _ = checked(config)

        assert line.startswith("signing.gate: toolchain default cannot verify kernels, since numpy")
        assert "jitgen[emulator]" in line

    def test_a_socket_without_a_signer_is_a_mistake(self, config: Path) -> None:
        (config.parent / "trust.json").write_bytes(sealed(KEY))
        config.write_text(config.read_text().replace("key =", "socket =").replace("key.pem", "no"))
        (line,), _ = checked(config)

        assert line.startswith("signing.socket: the signer does not answer: ")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    if made.running.process is not None and made.running.process.poll() is None:
        made.running.stop()


def test_a_key_that_is_not_trusted_yet_is_told_and_mended(story: Story) -> None:
    """
    Log, /readyz, /v1/info, /metrics and pages said that all was well, while every client refused
    what was signed; and it stayed refused when the key was trusted at last.
    """
    running = story.running
    story.trusts(PrivateKey.generate())
    running.start(until="/livez")
    until(lambda: any(e["event"] == "pool ready" for e in running.events()))
    ready = running.request("GET", "/readyz", "")
    told = [e for e in running.events() if e["event"] == "signing key"]
    info = running.request("GET", "/v1/info").json()["signing"]
    metrics = running.request("GET", "/metrics").data.decode()

    assert ready.status == 503
    assert "jitgen trust add puts it there" in ready.json()["reason"]
    assert (told[0]["level"], told[0]["state"]) == ("error", "absent")
    assert info["standing"]["state"] == "absent"
    assert 'jitgen_service_signing{state="absent"} 1.0' in metrics
    assert "clients refuse what is signed" in running.request("GET", "/ui").data.decode()
    assert "is not in trust document 1" in running.request("GET", "/ui/revocations").data.decode()
    assert "is not in trust document" in story.accepts(running.compile(CONFIG).data, CONFIG)

    time.sleep(1)  # a key signs from a whole second on
    story.trusts(running.key, begins=timedelta())
    running.reload()
    assert running.request("GET", "/readyz", "").json() == {"ready": True}
    assert story.accepts(story.get(CONFIG), CONFIG) == ""
    assert story.compiled(CONFIG) == 1, "it was signed again, not compiled again"
    store = Store(running.folder / "cache", "ro").read(spec_of(CONFIG, Arch.CPU).key)
    assert store is not None
    assert len(dsse.decode(store.signatures)) == 1, "in the place of the one that did not count"
