# SPDX-License-Identifier: Apache-2.0
"""What an operator makes for a service of the examples, by commands; and a client of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import containers


def jitgen(*words: str, **environment: str) -> str:
    """Run a command of jitgen; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "jitgen", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def authority(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """Make a signing key, a trust document with it, and a token of pods with its table."""
    root_key, signing, trust = (folder / name for name in ("root.pem", "signing.pem", "trust.json"))
    at = {"JITGEN_TRUST": str(trust)}
    jitgen("trust", "init", "--root-key", str(root_key), **at)
    public = json.loads(jitgen("trust", "key", str(signing), "--json", **at))["public"]
    jitgen("trust", "add", "--root-key", str(root_key), public, **at)
    token = json.loads(jitgen("token", "pods", "--scopes", "read,compile", "--json"))
    return signing, trust, token


def kernel_from(process: subprocess.Popen[bytes], folder: Path, token: str, trust: Path) -> str:
    """Get a kernel as a client of a service; return where it came from."""
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    program = (
        "import jitgen, jitgen.plans\n"
        "config = jitgen.plans.configs(jitgen.plans.load('route'), 'cpu')[0]\n"
        "print(jitgen.get_kernel(config, 'cpu').tier)\n"
    )
    done = subprocess.run(
        containers.beside(process, sys.executable, "-c", program),
        env={
            **os.environ,
            "JITGEN_TRUST": str(trust),
            "JITGEN_SERVICE": "https://127.0.0.1:8555",
            "JITGEN_TOKEN_FILE": str(folder / "token"),
            "JITGEN_CACHE_DIR": str(folder / "cache"),
            "SSL_CERT_FILE": str(folder.parent / "tls.crt"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def certificate(folder: Path) -> dict[str, bytes]:
    """Make a certificate for this machine, and return its two files."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    key, certificate = folder / "tls.key", folder / "tls.crt"
    subprocess.run(
        [
            *command.split(),
            *("-subj", "/CN=jitgen-service", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return {"tls.key": key.read_bytes(), "tls.crt": certificate.read_bytes()}
