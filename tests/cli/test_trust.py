# SPDX-License-Identifier: Apache-2.0
"""`jitgen trust`, and `jitgen cache sign`, `push`, `pull`: from one root to another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jitgen import plans
from jitgen.bench.processes import fabricate
from jitgen.cache import Store
from jitgen.runtime.spec import spec_of
from jitgen.settings import settings
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from tests import toxic
from tests.cli.conftest import Jitgen
from tests.unit.coverage_fakes import GPU, H200, filled, small
from tests.unit.remote_stand import forget


@pytest.fixture
def place(tmp_path: Path, jitgen: Jitgen) -> Iterator[Path]:
    """A folder with a trust document, its root key, and a key that signs."""
    tmp_path.chmod(0o700)
    forget()
    with settings.scope(trust=tmp_path / "trust.json"):
        assert jitgen(f"trust init --root-key {tmp_path}/root.pem").code == 0
        assert jitgen(f"trust key {tmp_path}/ci.pem").code == 0
        done = jitgen(f"trust add {tmp_path}/ci.pem --root-key {tmp_path}/root.pem --comment ci")
        assert done.code == 0
        yield tmp_path
    forget()


def test_a_document_in_a_folder_that_is_missing(jitgen: Jitgen, tmp_path: Path) -> None:
    """It made the root key all the same, and named a temporary file."""
    with settings.scope(trust=tmp_path / "none" / "trust.json"):
        done = jitgen(f"trust init --root-key {tmp_path}/root.pem")

    assert done.code == 2
    assert f"make it first: mkdir -p {tmp_path}/none\n" in done.err
    assert not (tmp_path / "root.pem").exists()


def test_entries_travel_signed(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    fabricate(cache_root, 2)
    url, keys = f"file://{place}/bucket", sorted(i.key for i in Store.open().entries())
    done = jitgen(f"cache push --to {url} --key {place}/ci.pem --json")
    assert sorted(done.document["pushed"]) == keys
    assert done.document["unsigned"] == []
    assert jitgen("cache verify --signatures").code == 0

    with settings.scope(cache_dir=place / "other", remote=url, verify="always"):
        assert jitgen(f"cache pull {keys[0]} --json").document["pulled"] == keys[:1]
        done = jitgen("cache pull --all --json")
        assert (done.document["pulled"], done.document["here"]) == (keys[1:], keys[:1])
        assert jitgen("cache stats --json").document["elsewhere"][0]["state"] == "asked"
        assert url in jitgen("cache dir").err
        assert f"not listed: the kernels of {url}\n" in jitgen("cache ls").err
        assert "answers in" in jitgen("doctor --remote").out


def test_what_is_revoked_is_neither_pulled_nor_good(
    jitgen: Jitgen, place: Path, cache_root: Path
) -> None:
    fabricate(cache_root, 1)
    (key,) = (info.key for info in Store.open().entries())
    assert jitgen(f"cache sign --key {place}/ci.pem").code == 0
    assert jitgen(f"cache push --to file://{place}/bucket").code == 0
    done = jitgen(f"trust revoke {key} --reason slow --root-key {place}/root.pem")
    assert done.code == 0

    forget()
    done = jitgen("cache verify --signatures --json")
    assert done.code == 1
    assert "is revoked: slow" in done.document["refused"][key]
    with settings.scope(cache_dir=place / "other"):
        done = jitgen(f"cache pull --all --from file://{place}/bucket --json")
    assert done.code == 1
    assert "is revoked: slow" in done.document["failed"][key]


def test_a_revocation_is_taken_back(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    """The next version of the document says so, signed by the root, and the log has the reason."""
    fabricate(cache_root, 1)
    (key,) = (info.key for info in Store.open().entries())
    assert jitgen(f"cache sign --key {place}/ci.pem").code == 0
    root = f"--root-key {place}/root.pem"
    assert jitgen(f"trust revoke {key} --reason slow {root}").code == 0
    forget()
    assert jitgen("cache verify --signatures").code == 1
    done = jitgen(f"trust unrevoke {key[:12]} --reason measured {root} --json")

    assert (done.code, done.document["version"]) == (0, 4)
    forget()
    assert jitgen("cache verify --signatures").code == 0
    assert jitgen("trust show --json").document["revoked"] == {}
    *_, revoked, unrevoked = map(json.loads, (place / "trust.json.log").read_text().splitlines())
    assert (revoked["command"], revoked["digests"]) == ("revoke", {key: "slow"})
    assert (unrevoked["command"], unrevoked["digests"]) == ("unrevoke", {key: "measured"})
    assert unrevoked["version"] == 4
    done = jitgen(f"trust unrevoke {'ab' * 32} {root}")
    assert done.code == 1
    assert "is not revoked by trust document 4" in done.err
    assert "is not revoked, or too short" in jitgen(f"trust unrevoke abc {root}").err


def test_the_beginning_of_several_digests_names_none(jitgen: Jitgen, place: Path) -> None:
    """It was said not to be revoked, or to be too short."""
    root = f"--root-key {place}/root.pem"
    first, second = "ab" * 32, "ab" * 31 + "cd"
    assert jitgen(f"trust revoke {first} {second} {root}").code == 0
    done = jitgen(f"trust unrevoke {first[:40]} {root}")

    assert done.code == 2
    assert f"begins {first} and {second}: give more digits of one" in done.err
    assert jitgen(f"trust unrevoke {first} {root}").code == 0


def test_a_key_is_taken_back(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    """What it signed counts again; until then nothing is signed with it."""
    fabricate(cache_root, 1)
    keyid = PrivateKey.load(place / "ci.pem").keyid
    root = f"--root-key {place}/root.pem"
    assert jitgen(f"cache sign --key {place}/ci.pem").code == 0
    assert jitgen(f"trust revoke {keyid} --reason lost {root}").code == 0
    for words in (
        "cache push --to file://{0}/bucket --key {0}/ci.pem",
        "cache sign --key {0}/ci.pem",
    ):
        done = jitgen(words.format(place))
        assert done.code == 1
        assert "is revoked by trust document 3: lost; nothing is signed with it" in done.err
    assert not (place / "bucket").exists()
    assert jitgen(f"trust unrevoke {keyid[:12]} {root}").code == 0
    forget()

    assert jitgen("cache verify --signatures").code == 0
    assert jitgen(f"cache push --to file://{place}/bucket --key {place}/ci.pem").code == 0


def test_the_public_half_of_a_key(jitgen: Jitgen, place: Path) -> None:
    key = PrivateKey.load(place / "ci.pem")

    assert jitgen(f"trust public {place}/ci.pem").out == f"{key.public.text}\n"
    assert jitgen(f"trust public {place}/ci.pem --json").document["keyid"] == key.keyid
    assert "there is no file" in jitgen("trust public none.pem").err


def test_a_push_signs_what_lies_there_unsigned(
    jitgen: Jitgen, place: Path, cache_root: Path
) -> None:
    """It used to say that the entry was there, and no client took it."""
    fabricate(cache_root, 2)
    first, second = sorted(info.key for info in Store.open().entries())
    url = f"file://{place}/bucket"
    assert jitgen(f"cache push {first} --to {url}").code == 0
    with settings.scope(cache_dir=place / "other", remote=url):
        assert jitgen("cache pull --all").code == 1
    done = jitgen(f"cache push --to {url} --key {place}/ci.pem --json")
    assert done.code == 0
    assert done.document["there"] == done.document["signed"] == [first]
    assert done.document["pushed"] == [second]
    assert jitgen(f"cache push --to {url} --key {place}/ci.pem --json").document["signed"] == []

    forget()
    with settings.scope(cache_dir=place / "other", remote=url):
        assert jitgen("cache pull --all").code == 0


def test_a_plan_is_pulled(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    """Every kernel that it can choose on a device, and nothing else that lies there."""
    plan = small(place)
    configs = plans.configs(plan, GPU, devices=(H200,))
    filled(Store.open(), configs)
    fabricate(cache_root, 1)
    url = f"file://{place}/bucket"
    assert jitgen(f"cache push --to {url} --key {place}/ci.pem").code == 0
    with settings.scope(cache_dir=place / "other", remote=url):
        done = jitgen(f"cache pull {place}/small.toml --device h200 --json")

    assert done.code == 0
    assert set(done.document["pulled"]) == {spec_of(each, GPU).key for each in configs}


def test_unsigned_entries_are_told(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    fabricate(cache_root, 1)
    done = jitgen(f"cache push --to file://{place}/bucket")

    assert done.code == 0
    assert "not signed" in done.err


def test_keys_rotate_and_what_they_signed_counts(jitgen: Jitgen, place: Path) -> None:
    old = PrivateKey.load(place / "ci.pem").keyid
    jitgen(f"trust key {place}/new.pem")
    done = jitgen(f"trust rotate {place}/new.pem --root-key {place}/root.pem --overlap 1")
    assert done.code == 0

    shown = jitgen("trust show --json").document
    assert shown["version"] == 3
    ends = {key["keyid"]: key["not_after"] for key in shown["keys"]}
    assert ends.pop(old) < min(ends.values())


def test_rotating_says_what_ends_when(jitgen: Jitgen, place: Path) -> None:
    """It ended every key, that of the other builder too, and said a number of keys."""
    root = f"--root-key {place}/root.pem"
    for name in ("farm", "new", "newer"):
        jitgen(f"trust key {place}/{name}.pem")
    jitgen(f"trust add {place}/farm.pem {root} --comment farm --signs 300")
    ids = {n: PrivateKey.load(place / f"{n}.pem").keyid for n in ("ci", "farm", "new", "newer")}
    before = untils(jitgen)

    done = jitgen(f"trust rotate {place}/new.pem {root} --replaces {ids['ci'][:12]} --comment ci2")
    after = untils(jitgen)
    assert done.code == 0
    assert f"key {ids['ci'][:12]} (ci) signs until {after[ids['ci']]}" in done.out
    assert f"key {ids['new'][:12]} (ci2) signs until {after[ids['new']]}" in done.out
    assert ids["farm"][:12] not in done.out
    assert after[ids["ci"]] < before[ids["ci"]]
    assert after[ids["farm"]] == before[ids["farm"]]

    done = jitgen(f"trust rotate {place}/newer.pem {root} --overlap 1 --signs 10 --json")
    last = untils(jitgen)
    assert done.document["ends"] == {ids[n]: last[ids[n]] for n in ("ci", "farm", "new", "newer")}
    assert last[ids["farm"]] < last[ids["newer"]] < after[ids["farm"]]


def untils(jitgen: Jitgen) -> dict[str, str]:
    """Return until when each key signs."""
    shown = jitgen("trust show --json").document
    return {key["keyid"]: key["not_after"] for key in shown["keys"]}


def test_what_rotates_must_be_there(jitgen: Jitgen, place: Path) -> None:
    root = f"--root-key {place}/root.pem"
    ci = PrivateKey.load(place / "ci.pem").keyid[:12]
    jitgen(f"trust key {place}/new.pem")
    for words, says in (
        (f"trust rotate {place}/new.pem {root} --replaces {'a' * 64}", f"it has {ci}"),
        (f"trust rotate {place}/new.pem {root} --root --replaces {ci}", "--replaces: not with "),
    ):
        done = jitgen(words)
        assert (done.code, says in done.err) == (2, True), done


def test_a_key_that_is_added_again_keeps_what_it_signed(
    jitgen: Jitgen, place: Path, cache_root: Path
) -> None:
    """It signed from that moment on, and all that it had signed before was refused."""
    fabricate(cache_root, 1)
    assert jitgen(f"cache sign --key {place}/ci.pem").code == 0
    time.sleep(1.1)
    assert jitgen(f"trust add {place}/ci.pem --root-key {place}/root.pem").code == 0
    forget()

    assert jitgen("cache verify --signatures").code == 0
    assert "ci" in jitgen("trust show").out


def test_signing_counts_what_it_signed(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    """It counted every entry, those too that it left as they were."""
    fabricate(cache_root, 3)
    sign, key = f"cache sign --key {place}/ci.pem", next(iter(Store.open().entries())).key
    assert "1 entry signed\n" in jitgen(f"{sign} {key}").out
    done = jitgen(sign)
    assert "2 entries signed, 1 had a signature of this key\n" in done.out
    assert not done.err
    done = jitgen(f"{sign} --json")
    assert (done.document["signed"], len(done.document["there"])) == ([], 3)

    time.sleep(1.1)  # what is signed from now on counts
    now = datetime.now(UTC).isoformat(timespec="seconds")
    assert jitgen(f"trust revoke --before {now} --root-key {place}/root.pem").code == 0
    forget()
    done = jitgen(sign)
    assert "3 of these are refused here; sign them anew with --again" in done.err
    assert "3 entries signed\n" in jitgen(f"{sign} --again").out
    assert jitgen("cache verify --signatures").code == 0
    entry = Store.open().read(key)
    assert entry is not None
    assert len(dsse.decode(entry.signatures)) == 1


def test_a_signer_hears_that_the_key_is_refused(
    jitgen: Jitgen, place: Path, cache_root: Path
) -> None:
    """An entry was signed and pushed, and every client refused it."""
    fabricate(cache_root, 1)
    jitgen(f"trust key {place}/other.pem")
    for words in (
        f"cache sign --key {place}/other.pem",
        f"cache push --to file://{place}/bucket --key {place}/other.pem",
    ):
        assert "is not in trust document 2; jitgen trust add puts it there" in jitgen(words).err


def test_root_key_rotates_with_both_signatures(jitgen: Jitgen, place: Path) -> None:
    jitgen(f"trust key {place}/root2.pem")
    done = jitgen(f"trust rotate {place}/root2.pem --root --root-key {place}/root.pem")
    assert done.code == 0
    assert "signs no document after this one" in done.out

    before = jitgen(f"trust revoke {'a' * 64} --root-key {place}/root.pem")
    assert before.code == 1
    assert jitgen(f"trust revoke {'a' * 64} --root-key {place}/root2.pem").code == 0


def test_mistakes_are_told(jitgen: Jitgen, place: Path) -> None:
    root = f"--root-key {place}/root.pem"
    for words, code, text in (
        (f"trust init {root}", 1, "exists"),
        (f"trust add {place}/root.pem {root}", 1, "a root key does not sign entries"),
        (f"trust add nonsense {root}", 2, "neither a key's file nor a public key"),
        (f"trust revoke xyz {root}", 2, "is no digest"),
        (f"trust revoke {root}", 2, "name a DIGEST"),
        (f"trust revoke --before yesterday {root}", 2, "is no time"),
        (f"trust revoke --before 0001-01-01 {root}", 2, "is no time"),
        (f"trust add {place}/ci.pem --root-key {place}/ci.pem", 1, "one of the roots it names"),
        (f"trust add {place}/ci.pem --root-key {place}/no.pem", 2, "jitgen trust init makes one"),
        (f"trust key {place}/ci.pem", 1, "exists, and no key is overwritten"),
        (f"trust rotate --root {root} {place}/root2.pem", 1, "jitgen trust key makes one"),
        (f"trust show --file {place}/none.json", 2, "jitgen trust init makes one"),
        (f"trust show --file {place}/ci.pem", 1, "ci.pem is no trust document"),
        ("cache push --to ftp://x", 2, "a URL that begins with s3://"),
        ("cache push --to https://x", 2, "can only be read"),
        ("cache push", 2, "JITGEN_REMOTE is not set"),
        ("cache pull --from file:///x", 2, "--all"),
        (f"cache pull --all --from file://{place}/none", 1, "does not say what it has"),
    ):
        done = jitgen(words)
        assert (done.code, text in done.err) == (code, True), (words, done)
    assert not (place / "none").exists()


def test_a_key_is_revoked_by_what_show_prints(jitgen: Jitgen, place: Path) -> None:
    keyid = PrivateKey.load(place / "ci.pem").keyid
    assert f"\n{keyid[:12]} " in jitgen("trust show").out

    root = f"--root-key {place}/root.pem"
    assert "is no digest" in jitgen(f"trust revoke {keyid[:11]} {root}").err
    assert jitgen(f"trust revoke {keyid[:12]} {root}").code == 0
    assert list(jitgen("trust show --json").document["revoked_keys"]) == [keyid]


def test_expired_document_is_told(
    jitgen: Jitgen, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    from jitgen.signing import times

    later = times.now() + timedelta(days=366)
    monkeypatch.setattr(times, "now", lambda: later)
    done = jitgen("trust show")

    assert done.code == 1
    assert "it has expired" in done.out


@pytest.mark.parametrize(
    ("signing", "unready", "health", "says"),
    [
        ("ci", "", "ok", "signs with key"),
        ("ci", "the queue is full", "warn", "is not ready: the queue is full"),
        ("other", "", "fail", "is not in trust document 2"),
        ("", "", "fail", "signs nothing, so that all that it has is refused here"),
    ],
)
def test_the_doctor_compares_a_services_key_with_the_trust_here(
    jitgen: Jitgen, place: Path, signing: str, unready: str, health: str, says: str
) -> None:
    """A service that answers was in order, though everything that it signs is refused here."""
    if signing == "other":
        jitgen(f"trust key {place}/other.pem")
    keyid = PrivateKey.load(place / f"{signing}.pem").keyid if signing else ""
    info = json.dumps({"signing": {"keyid": keyid}, "unready": unready}).encode()

    async def said(request: toxic.Request, writer: asyncio.StreamWriter) -> None:
        is_info = request.path == "/v1/info"
        answer = toxic.answer(200, info, content_type="application/json") if is_info else MISSING
        await answer(request, writer)

    with toxic.toxic(said) as server, settings.scope(service=server.url):
        done = jitgen("doctor --remote --json")
    rows = [row for row in done.document["findings"] if row["name"] == "signing"]

    assert rows[0]["health"] == health
    assert says in rows[0]["value"]
    assert done.code == (1 if health == "fail" else 0), done


MISSING = toxic.answer(404, b"{}")


def test_a_cache_adopts_another_document(jitgen: Jitgen, place: Path, cache_root: Path) -> None:
    """A file with other roots was taken without a word; now it is refused until this is said."""
    fabricate(cache_root, 1)
    assert jitgen(f"cache sign --key {place}/ci.pem").code == 0
    assert jitgen("cache verify --signatures").code == 0
    (place / "trust.json").unlink()
    assert jitgen(f"trust init --root-key {place}/root3.pem").code == 0
    done = jitgen("cache verify --signatures")
    assert (done.code, "jitgen trust adopt" in done.err) == (1, True)

    done = jitgen("trust adopt --json")
    assert done.document["version"] == 1
    assert done.document["forgotten"] == 2
    assert jitgen("trust adopt --json").document["forgotten"] is None
    forget()
    done = jitgen("cache verify --signatures --json")
    assert "is not in trust document 1" in next(iter(done.document["refused"].values()))


def test_a_document_holds_what_led_to_it(jitgen: Jitgen, place: Path) -> None:
    """A host that had not seen the version with both signatures could not follow."""
    from jitgen.signing.trust import opened

    first = opened((place / "trust.json").read_bytes())
    jitgen(f"trust key {place}/root2.pem")
    jitgen(f"trust rotate {place}/root2.pem --root --root-key {place}/root.pem")
    jitgen(f"trust revoke {'a' * 64} --root-key {place}/root2.pem")
    latest = opened((place / "trust.json").read_bytes(), first)

    assert [one.version for one in latest.before] == [3]
    assert latest.version == 4


def test_what_cannot_be_looked_at_is_not_overwritten(
    jitgen: Jitgen, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` asked whether there is a document, and took an error for a no."""
    before = (place / "trust.json").read_bytes()

    def lstat(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", lstat)
        done = jitgen(f"trust init --root-key {place}/root.pem")
    assert (done.code, "cannot be looked at" in done.err) == (1, True)
    assert (place / "trust.json").read_bytes() == before
