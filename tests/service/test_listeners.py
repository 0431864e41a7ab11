# SPDX-License-Identifier: Apache-2.0
"""TLS, client certificates, a signer of another user's, prewarms, and metrics that add up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.runtime.spec import spec_of
from jitgen.signing import dsse
from tests.service.running import Running

pytestmark = pytest.mark.service

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=16, n=64, k=128))
PLAN = {
    "problems": [
        {
            "layout": "ragged",
            "dtype": "e4m3",
            "scale_granularity": "block128",
            "groups": 4,
            "matrix": {"n": 256, "k": 256},
            "rows_per_group": {"min": 1, "max": 64},
        }
    ]
}


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of a certificate that signs itself, for 127.0.0.1, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    """A client without a certificate of the operator's authority cannot even send a token."""
    own, client = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    service = Running(
        tmp_path / "service",
        {
            "listen": {
                "certificate": str(own[0]),
                "certificate_key": str(own[1]),
                "client_ca": str(client[0]),
            }
        },
    )
    service.http = urllib3.PoolManager(
        retries=False, ca_certs=str(own[0]), cert_file=str(client[0]), key_file=str(client[1])
    )
    service.scheme = "https"
    service.start()
    try:
        assert service.request("GET", "/v1/info").status == 200
        assert service.request("GET", "/v1/info", "").status == 401
        stranger = urllib3.PoolManager(retries=False, ca_certs=str(own[0]))
        with pytest.raises(urllib3.exceptions.HTTPError):
            stranger.request("GET", f"{service.url}/livez")
    finally:
        service.stop()


def test_a_signer_behind_a_socket(tmp_path: Path) -> None:
    """The service has no key at all, and what it compiles is signed."""
    socket = tmp_path / "signer.sock"
    service = Running(tmp_path / "service", {"signing": {"socket": str(socket)}})
    text = service.config.read_text()
    key_line = f'key = "{service.folder}/key.pem"\n'
    assert key_line in text
    service.config.write_text(text.replace(key_line, ""))
    key = service.folder / "key.pem"
    signer = subprocess.Popen(
        [sys.executable, "-m", "jitgen", "signer", f"--key={key}", f"--socket={socket}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not socket.exists():
            assert signer.poll() is None
            time.sleep(0.05)
        service.start()
        packed = wire.unpack(service.compile(CONFIG).data, spec_of(CONFIG, Arch.CPU).key)
        (envelope,) = dsse.decode(packed.signatures)

        assert envelope.is_signed_by(service.key.public)
    finally:
        service.stop()
        signer.kill()
        signer.communicate()


def test_a_plan_is_prewarmed_with_an_event_a_kernel(tmp_path: Path) -> None:
    """By its table; twice, and the second time everything is there."""
    service = Running(tmp_path / "service")
    service.start()
    try:
        body = {"plan": PLAN, "arch": "cpu", "toolchain": toolchain.versions()}
        states = []
        for _ in range(2):
            begun = service.request("POST", "/v1/prewarm", json=body)
            assert begun.status == 202, begun.data
            events = {"Accept": "text/event-stream"}
            text = service.request("GET", begun.headers["Location"], headers=events).data.decode()
            rows = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
            *kernels, summary = rows
            assert summary["done"] == summary["total"] == len(kernels) >= 1
            assert summary["state"] == "done"
            states.append({row["state"] for row in kernels})
        wrong = service.request("POST", "/v1/prewarm", json=body | {"plan": "/etc/passwd"})
        metrics = service.request("GET", "/metrics").data.decode()

        assert states == [{"compiled"}, {"cached"}]
        assert (wrong.status, wrong.json()["code"]) == (422, "E_PLAN")
        line = 'jitgen_service_compiles_total{arch="cpu",outcome="compiled",toolchain="default"}'
        assert f"{line} {float(len(kernels))}" in metrics
    finally:
        service.stop()
