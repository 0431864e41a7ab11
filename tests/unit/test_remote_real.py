# SPDX-License-Identifier: Apache-2.0
"""
Real servers: an S3 of moto's, and nginx with TLS. They run where they are installed.

moto wants an older python-dateutil than the constraints have: install it in an environment of its
own, and add that one's folder of programs to PATH.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from jitgen.remote.objects import Objects
from jitgen.remote.outcomes import Miss
from jitgen.settings import settings
from jitgen.signing import times

from .remote_stand import KEY, THIEF, Stand, entry_of, forget, is_same

pytestmark = pytest.mark.nightly
MOTO, NGINX = shutil.which("moto_server"), shutil.which("nginx", path="/usr/sbin:/usr/bin")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.skipif(MOTO is None, reason="needs moto_server: pip install 'moto[server]'")
def test_s3(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """One root pushes, another fetches; strangers' entries and missing ones are not loaded."""
    port = _free_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    good, bad = entry_of(1, KEY), entry_of(2, THIEF)
    with _running([str(MOTO), "-H", "127.0.0.1", "-p", str(port)], port):
        with socket.create_connection(("127.0.0.1", port)) as made:  # the bucket
            made.sendall(b"PUT /kernels HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert b" 200 " in made.recv(1000)
        url = "s3://kernels/fleet"
        place = Objects(url, is_patient=True)
        from jitgen.remote import layout

        assert [layout.push(place, entry) for entry in (good, bad, good)] == [True, True, False]
        assert sorted(place.keys()) == sorted((good.key, bad.key))
        with settings.scope(verify="always"):
            assert is_same(stand.fetch(good, url), good)
            assert is_same(stand.store.read(good.key), good)
            assert isinstance(stand.fetch(bad, url), Miss)
            missing = stand.fetch(entry_of(3, KEY), url)
        assert isinstance(missing, Miss)
        assert missing.is_not_found
    forget()
    start = time.perf_counter()
    found = stand.fetch(entry_of(4, KEY), url)
    assert time.perf_counter() - start < 0.35
    assert isinstance(found, Miss)
    assert not found.is_not_found


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a certificate for `name` that signs itself; returns it and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(times.now() - timedelta(days=1))
        .not_valid_after(times.now() + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / f"{name}.pem", folder / f"{name}.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return chain, secret


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_nginx_with_tls(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket behind nginx; a self-signed certificate, or one of another name, is refused."""
    port, good = _free_port(), entry_of(1, KEY)
    stand.push(good)
    for folder in (stand.folder, *stand.bucket.rglob("*"), stand.bucket):
        folder.chmod(0o755)  # nginx serves as another user
    chain, secret = _certificate(stand.folder, "localhost")
    config = stand.folder / "nginx.conf"
    config.write_text(
        f"""
        daemon off; pid {stand.folder}/nginx.pid; error_log {stand.folder}/error.log;
        user root;
        events {{}}
        http {{
            access_log off;
            server {{
                listen 127.0.0.1:{port} ssl;
                ssl_certificate {chain}; ssl_certificate_key {secret};
                location /cache/ {{ alias {stand.bucket}/; }}
                location /moved/ {{ return 302 https://localhost:{port}/cache/; }}
            }}
        }}
        """
    )
    with _running([str(NGINX), "-c", str(config)], port):
        found = stand.fetch(good, f"https://localhost:{port}/cache")
        assert isinstance(found, Miss)
        assert "certificate" in found.reason.lower()

        forget()
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        other = stand.fetch(good, f"https://127.0.0.1:{port}/cache")
        assert isinstance(other, Miss)
        assert "certificate" in other.reason.lower()

        moved = stand.fetch(good, f"https://localhost:{port}/moved")
        assert isinstance(moved, Miss)
        assert "a redirect" in moved.reason

        (stand.folder / "root" / "v1" / "breakers").rename(stand.folder / "breakers")
        assert is_same(stand.fetch(good, f"https://localhost:{port}/cache"), good)
