# SPDX-License-Identifier: Apache-2.0
"""
What lies beside the files of a release: a bill of materials, where they come from, their digests.

The bill is CycloneDX 1.6. It lists what jitgen requires and the set that was tested with it, the
versions of ``constraints.txt``; wheel and source distribution contain none of these packages. The
provenance is an in-toto statement with SLSA's predicate: which commit gave which bytes, by which
versions. A second build with the same versions gives the same files.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from docs.site.stage import ROOT
from jitgen import __version__

_NAME = re.compile(r"[\w.-]+")
_PIN = re.compile(r"^([\w.-]+)==(\S+)$", re.MULTILINE)
BUILD_TYPE = "docs/compatibility.md#how-a-release-is-made"
"""The page, below the home of a version, that says what a build is given and returns."""


def write(out: Path, files: Iterable[Path], commit: str, at: int, home: str) -> list[Path]:
    """
    Write the three files beside `files`, and return their paths.

    Args:
        out: The folder.
        files: Wheel and source distribution.
        commit: The commit that they were built from.
        at: Time of all files, in seconds since 1970.
        home: Where a browser finds the files of this version.
    """
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}
    made = {
        f"jitgen-{__version__}.cdx.json": _json(bill(digests, at)),
        f"jitgen-{__version__}.provenance.json": _json(statement(digests, commit, home)),
    }
    for name, text in made.items():
        (out / name).write_text(text, encoding="utf-8")
        digests[name] = hashlib.sha256(text.encode()).hexdigest()
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    (out / "SHA256SUMS").write_text(lines, encoding="utf-8")
    return [out / name for name in (*made, "SHA256SUMS")]


def bill(digests: dict[str, str], at: int) -> dict[str, object]:
    """Return the bill of materials of files with these SHA-256 digests."""
    own = f"pkg:generic/jitgen@{__version__}"  # no index has it
    pins = {_normal(name): pin for name, pin in _PIN.findall(_text("constraints.txt"))}
    roles = _roles()
    refs = {name: f"pkg:pypi/{name}@{pin}" for name, pin in sorted(pins.items())}
    made = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(digests))}",
        "version": 1,
        "metadata": {
            "timestamp": made,
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "jitgen",
                "version": __version__,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "components": [
                    {
                        "type": "file",
                        "bom-ref": f"file:{name}",
                        "name": name,
                        "hashes": [{"alg": "SHA-256", "content": digest}],
                    }
                    for name, digest in digests.items()
                ],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": refs[name],
                "name": name,
                "version": pins[name],
                "purl": refs[name],
                "scope": "required" if "" in roles.get(name, ()) else "optional",
                "properties": [
                    {"name": "jitgen:required-by", "value": _required_by(roles.get(name, ()))}
                ],
            }
            for name in refs
        ],
        "dependencies": [
            {"ref": own, "dependsOn": [refs[name] for name in sorted(roles) if name in refs]}
        ],
    }


def statement(digests: dict[str, str], commit: str, home: str) -> dict[str, object]:
    """Return where files with these SHA-256 digests come from, unsigned."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{home.rstrip('/')}/{BUILD_TYPE}",
                "externalParameters": {"command": "python -m docs.site dist", "home": home},
                "resolvedDependencies": [{"uri": home, "digest": {"gitCommit": commit}}],
            },
            "runDetails": {
                "builder": {
                    "id": f"{home.rstrip('/')}/docs/site/release.py",
                    "version": {
                        "python": platform.python_version(),
                        "setuptools": version("setuptools"),
                    },
                },
            },
        },
    }


def _roles() -> dict[str, tuple[str, ...]]:
    """Return which extras require each package directly; an empty word is jitgen itself."""
    project = tomllib.loads(_text("pyproject.toml"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, tuple[str, ...]] = {}
    for extra, requirements in groups.items():
        for text in requirements:
            name = _normal(_NAME.findall(text)[0])
            if name != "jitgen":
                found[name] = (*found.get(name, ()), extra)
    return found


def _required_by(extras: tuple[str, ...]) -> str:
    if not extras:
        return "other packages of the tested set"
    return ", ".join(f"jitgen[{extra}]" if extra else "jitgen" for extra in extras)


def _normal(name: str) -> str:
    """Return a name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _json(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2) + "\n"
