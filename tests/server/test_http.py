# SPDX-License-Identifier: Apache-2.0
"""A real service: a client asks for a kernel, loads it, and gets each answer that there is."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest

from jitgen.cache import Entry, Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.runtime import kernel
from jitgen.runtime.spec import spec_of
from jitgen.server.routes import ROUTES
from jitgen.signing.dsse import decode
from jitgen.signing.policy import judge
from jitgen.signing.trust import opened
from tests.server.conftest import REFUSED, UNLOVED
from tests.server.forging import forged, packed
from tests.service.running import SCOPES, Running, order
from tests.service.trusting import trust_in

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=16, n=64, k=128))
SPEC = spec_of(CONFIG, Arch.CPU)
PATH = f"/v1/entries/{SPEC.key}"
UNKNOWN = "0" * 64


def body(**changes: Any) -> dict[str, Any]:
    return order(CONFIG) | changes


class TestCompile:
    """The main path, and what can be wrong with a request."""

    def test_a_kernel_is_compiled_once_signed_and_loads(self, service: Running) -> None:
        """
        Two ask; one compile; what arrives is checked, signed, and runs here. The trace of the first
        request is in all that it caused.
        """
        trace = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "Prefer": "wait=100"}
        answers = [
            service.request("POST", "/v1/compile", json=body(), headers=headers),
            service.compile(CONFIG),
        ]
        found = [wire.unpack(answer.data, SPEC.key) for answer in answers]
        compiled = [e for e in service.events() if e["event"] == "compile" and e["key"] == SPEC.key]

        assert [answer.status for answer in answers] == [200, 200]
        assert found[0] == found[1]
        assert len(compiled) == 1
        (envelope,) = decode(found[0].signatures)
        assert envelope.is_signed_by(service.key.public)
        entry = Entry(key=SPEC.key, meta=found[0].meta, files=found[0].files)
        assert kernel.unsupported_isa(entry) == ""
        assert found[0].meta.config == CONFIG.to_json()
        assert answers[0].headers["traceparent"].split("-")[1] == trace
        events = {e["event"] for e in service.events() if e.get("trace") == trace}
        assert events >= {"request", "compile", "job over"}

    def test_without_a_wait_it_is_a_job_with_events(self, service: Running) -> None:
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=64, k=128))
        key = spec_of(config, Arch.CPU).key
        answer = service.request("POST", "/v1/compile", json=order(config))
        location = answer.headers["Location"]
        events = service.request("GET", location, headers={"Accept": "text/event-stream"}).data

        assert answer.status == 202
        assert location == f"/v1/jobs/{key}"
        assert int(answer.headers["Retry-After"]) >= 1
        assert events.count(b"event: done\n") == 1
        assert service.request("GET", location).json()["state"] == "done"

    @pytest.mark.parametrize(
        ("changes", "status", "code"),
        [
            ({"key": "x"}, 400, "E_FIELDS"),
            ({"config": "def f(): pass"}, 400, "E_FIELDS"),
            ({"source": "import os"}, 400, "E_FIELDS"),
            ({"toolchain": []}, 400, "E_FIELDS"),
            ({"config": {"op": "grouped_gemm"}}, 422, "E_CONFIGERROR"),
            ({"arch": "sm_1"}, 422, "E_CONFIGERROR"),
            ({"key": UNKNOWN}, 409, "E_KEY"),
        ],
    )
    def test_refusals(
        self, service: Running, changes: dict[str, Any], status: int, code: str
    ) -> None:
        answer = service.request("POST", "/v1/compile", json=body(**changes))

        assert (answer.status, answer.json()["code"]) == (status, code)
        assert answer.json()["reason"]

    def test_an_illegal_config_is_told_the_rule_and_a_legal_one(self, service: Running) -> None:
        config = CONFIG.to_json() | {"tile": {"m": 31, "n": 64, "k": 128}}
        answer = service.request("POST", "/v1/compile", json=body(config=config))
        refused = answer.json()

        assert answer.status == 422
        assert refused["code"] == "E_TILE_M"
        assert GroupedGemmConfig.from_json(refused["proposal"]).tile.m == 32

    def test_another_toolchain_is_told_the_difference(self, service: Running) -> None:
        toolchain = order(CONFIG)["toolchain"] | {"apache-tvm-ffi": "9.9"}
        answer = service.request("POST", "/v1/compile", json=body(toolchain=toolchain))

        assert answer.status == 409
        (difference,) = answer.json()["differs"]
        assert (difference["field"], difference["client"]) == ("apache-tvm-ffi", "9.9")

    def test_a_failure_is_remembered_from_run_to_run(self, service: Running) -> None:
        answer = service.compile(REFUSED.config)

        assert answer.status == 424
        assert answer.json()["reason"] == "the compiler did not like it"
        found = service.request("GET", f"/v1/entries/{REFUSED.key}")
        assert (found.status, found.json()["code"]) == (404, "E_MISSING")

    def test_what_the_trust_document_revokes_is_not_compiled(self, service: Running) -> None:
        answer = service.compile(UNLOVED.config)
        trust = service.request("GET", "/v1/trust")
        tag = {"If-None-Match": trust.headers["ETag"]}

        assert (answer.status, answer.json()["code"]) == (410, "E_REVOKED")
        assert opened(trust.data).trust.revoked == {UNLOVED.key: "no longer wanted"}
        assert service.request("GET", "/v1/trust", headers=tag).status == 304

    def test_bodies_are_bounded(self, service: Running) -> None:
        answer = service.request("POST", "/v1/compile", body=b" " * (2**16 + 1))
        deep = service.request("POST", "/v1/compile", body=b"[" * 2**15)

        assert answer.status == 413
        assert deep.status == 400


class TestEntries:
    """Fetch what is there, and be told what is not."""

    @pytest.fixture(autouse=True)
    def compiled(self, service: Running) -> None:
        assert service.compile(CONFIG).status == 200

    def test_encodings_tags_and_head(self, service: Running) -> None:
        plain = service.request("GET", PATH, decode_content=False)
        small = service.request(
            "GET", PATH, headers={"Accept-Encoding": "gzip, zstd"}, decode_content=False
        )
        refused = service.request("GET", PATH, headers={"Accept-Encoding": "zstd;q=0"})
        head = service.request("HEAD", PATH)
        same = service.request("GET", PATH, headers={"If-None-Match": plain.headers["ETag"]})

        assert wire.decompress(small.data) == plain.data == refused.data
        assert small.headers["Content-Encoding"] == "zstd"
        assert len(small.data) < len(plain.data)
        assert plain.headers["ETag"] == small.headers["ETag"] == head.headers["ETag"]
        assert (head.status, head.data) == (200, b"")
        assert int(head.headers["Content-Length"]) == len(plain.data)
        assert (same.status, same.data) == (304, b"")

    def test_what_is_not_there(self, service: Running) -> None:
        answer = service.request("GET", f"/v1/entries/{UNKNOWN}")
        missing = service.request("POST", "/v1/entries:missing", json={"keys": [UNKNOWN, SPEC.key]})

        assert (answer.status, answer.json()["code"]) == (404, "E_MISSING")
        assert missing.json() == {"missing": [UNKNOWN]}
        assert service.request("GET", "/v1/entries/../tokens.toml").status in (400, 404)
        assert service.request("GET", f"/v1/bundles/{UNKNOWN}").status == 404

    def test_a_bundle_is_served_under_its_own_digest_only(self, service: Running) -> None:
        content = b"a bundle" * 1000
        digest = hashlib.sha256(content).hexdigest()
        for name in (digest, "1" * 64):
            (service.bundles / f"{name}.tar").write_bytes(content)
        answer = service.request("GET", f"/v1/bundles/{digest}")
        tag = {"If-None-Match": answer.headers["ETag"]}

        assert (answer.status, answer.data) == (200, content)
        assert service.request("GET", f"/v1/bundles/sha256:{digest}").data == content
        assert service.request("GET", f"/v1/bundles/{digest}", headers=tag).status == 304
        assert service.request("GET", f"/v1/bundles/{'1' * 64}").status == 404

    def test_an_upload_is_rebuilt_and_the_own_build_is_handed_out(self, service: Running) -> None:
        """
        Another library under a right key was kept unsigned, and the service threw its own, right
        build away, so the kernel could not be had at all.
        """
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=16, n=32, k=128))
        given = forged(config, service.key)
        path = f"/v1/entries/{given.key}"
        answer = service.request("PUT", path, body=packed(given))
        kept = wire.unpack(service.request("GET", path).data, given.key)
        again = service.request("PUT", path, body=packed(given))

        assert answer.status == 201
        assert answer.json()["attested"] is False
        assert "other bytes, and those are handed out" in answer.json()["reason"]
        assert judge(kept.record, kept.signatures, trust_in(service.key))
        assert kept.files["kernel.so"] != given.files["kernel.so"]
        etag = f'"{hashlib.sha256(kept.record).hexdigest()}"'
        assert service.compile(config).headers["ETag"] == etag
        assert again.json() == {"key": given.key, "state": "kept before"}
        assert service.request("PUT", path, body=packed(given)[:-512]).status == 400
        assert service.request("PUT", PATH, body=packed(given)).status == 400

    def test_an_upload_of_equal_bytes_is_attested(self, service: Running) -> None:
        """It is in no memory any more a few seconds after it was removed from the disk."""
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=32, n=32, k=128))
        made = wire.unpack(service.compile(config).data, spec_of(config, Arch.CPU).key)
        Store(service.folder / "cache", "rw").remove(made.meta.key)
        keys = {"keys": [made.meta.key]}
        for _ in range(100):
            if service.request("POST", "/v1/entries:missing", json=keys).json()["missing"]:
                break
            time.sleep(0.1)
        data = wire.pack(made.record, made.files, made.signatures)
        answer = service.request("PUT", f"/v1/entries/{made.meta.key}", body=data)

        assert answer.json() == {"key": made.meta.key, "state": "kept", "attested": True}


class TestAccess:
    """Tokens: every scope on every resource."""

    @pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
    def test_the_matrix_is_exact(self, service: Running, route: Any) -> None:
        path = route.path.replace("{key}", UNKNOWN).replace("{digest}", UNKNOWN)
        for scope in (*SCOPES, ""):
            for method in route.methods:
                status = service.request(method, path, scope).status
                is_let_in = status not in (401, 403)

                assert is_let_in == (route.scope in ("", scope)), (scope, method, status)
                if not is_let_in:
                    assert status == (403 if scope else 401)

    def test_a_wrong_token(self, service: Running) -> None:
        for header in ("Bearer x", "Bearer", "Basic eDp5", "Bearer " + "x" * 5000, "\xff"):
            answer = service.request("GET", PATH, "", headers={"Authorization": header})

            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"]

    def test_methods_and_paths(self, service: Running) -> None:
        assert service.request("DELETE", PATH).status == 405
        assert service.request("GET", "/v1/none").status == 404


class TestState:
    """What the service says of itself."""

    def test_health_and_info(self, service: Running) -> None:
        info = service.request("GET", "/v1/info").json()

        assert service.request("GET", "/livez", "").status == 200
        assert service.request("GET", "/readyz", "").json() == {"ready": True}
        assert info["signing"]["keyid"] == service.key.keyid
        assert info["toolchains"]["default"]["ready"]

    def test_metrics(self, service: Running) -> None:
        text = service.request("GET", "/metrics").data.decode()

        assert 'jitgen_service_requests_total{resource="' in text
        assert "jitgen_service_compile_seconds_bucket" in text

    def test_the_openapi_document_has_every_resource(self, service: Running) -> None:
        document = json.loads(service.request("GET", "/v1/openapi.json", "").data)
        listed = {(p, m.upper()) for p, methods in document["paths"].items() for m in methods}

        assert listed == {(r.path, method) for r in ROUTES for method in r.methods}
        for route in ROUTES:
            operation = document["paths"][route.path][route.methods[0].lower()]
            assert operation.get("x-scope", "") == route.scope
            assert set(operation["responses"]) == {str(status) for status in route.all_answers}

    def test_what_is_revoked_is_gone(self, service: Running) -> None:
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=8, n=32, k=128))
        key = spec_of(config, Arch.CPU).key
        tag = service.compile(config).headers["ETag"].strip('"')
        answer = service.request("POST", "/v1/revocations", json={"revoked": {tag: "bad"}})
        gone = service.request("GET", f"/v1/entries/{key}")

        assert answer.json() == {"revoked": 1}
        assert (gone.status, gone.json()["reason"]) == (410, "it is revoked: bad")
        assert service.compile(config).status == 410
        listed = service.request("GET", "/v1/revocations").json()["revoked"]
        assert listed[tag]["by"] == "all"
        assert service.request("POST", "/v1/revocations", json={"revoked": {"x": ""}}).status == 400
        taken = service.request("POST", "/v1/revocations:remove", json={"revoked": {tag: "right"}})
        assert taken.json() == {"removed": 1}
        assert service.request("GET", f"/v1/entries/{key}").status == 200
        assert tag not in service.request("GET", "/v1/revocations").json()["revoked"]

    def test_what_the_trust_document_revokes_is_not_taken_back_here(self, service: Running) -> None:
        body = {"revoked": {UNLOVED.key: "why not"}}
        answer = service.request("POST", "/v1/revocations:remove", json=body)

        assert (answer.status, answer.json()["code"]) == (409, "E_TRUST")
        assert "jitgen trust unrevoke" in answer.json()["reason"]
