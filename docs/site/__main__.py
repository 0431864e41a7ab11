# SPDX-License-Identifier: Apache-2.0
"""``python -m docs.site``: the pages alone, the site, or what is uploaded to a package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from docs.site import peers, provenance, release, stage, variables
from jitgen.errors import JitgenError, SigningError
from jitgen.signing.keys import PrivateKey, PublicKey


@click.group()
def main() -> None:
    """Make a site of the documentation."""


@main.command()
def settings() -> None:
    """Write docs/settings.md anew, from the table of settings."""
    (stage.ROOT / "docs" / "settings.md").write_text(variables.page(), encoding="utf-8")


@main.command()
def arguments() -> None:
    """Write docs/arguments.md anew, from the descriptions of the calls."""
    from docs.site.arguments import page

    (stage.ROOT / "docs" / "arguments.md").write_text(page(), encoding="utf-8")


@main.command()
def plot() -> None:
    """Write docs/plots/peers.svg anew, from the table of the README."""
    (stage.ROOT / "docs" / "plots" / "peers.svg").write_text(peers.svg(), encoding="utf-8")


@main.command()
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="New folder.")
def pages(out: Path) -> None:
    """Write what mkdocs makes a site of; takes nothing but jitgen."""
    out.mkdir(parents=True)
    click.echo(stage.written(out.resolve()))


@main.command()
@click.option(
    "--out",
    "-o",
    default=Path("build/site"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the site; one that is there is replaced.",
)
def build(out: Path) -> None:
    """Make the site; every warning of mkdocs is an error."""
    if find_spec("material") is None:
        raise click.ClickException("mkdocs-material is not installed: pip install -e '.[docs]'")
    if out.exists() and not (out / "sitemap.xml").exists():
        raise click.ClickException(f"{out} is there, and is no site that could be replaced")
    with tempfile.TemporaryDirectory() as folder:
        settings = stage.written(Path(folder))
        site = Path(folder) / "site"
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # what mkdocs-material says of mkdocs 2
        done = subprocess.run(
            [*command, "-f", str(settings), "-d", str(site)], check=False, env=quiet
        )
        if done.returncode:
            raise click.ClickException("mkdocs found mistakes")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(site, out)
    click.echo(out)


@main.command()
@click.option(
    "--home", required=True, metavar="URL", help="Where a browser finds this version's files."
)
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="Folder.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Private key that signs the provenance; jitgen trust key makes one.",
)
def dist(home: str, out: Path, key: Path | None) -> None:
    """Build what a package index takes, with links in the README that work there."""
    if not home.startswith("https://"):
        raise click.BadParameter("must begin with https://", param_hint="--home")
    try:
        signer = None if key is None else PrivateKey.load(key)
        for path in release.built(home, out, signer):
            click.echo(path)
    except (release.NotBuilt, JitgenError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--public",
    required=True,
    metavar="TEXT",
    help="Public key of the builder, as jitgen trust public prints it.",
)
def check(folder: Path, public: str) -> None:
    """Check a release in FOLDER: its provenance is signed, and its files are those named there."""
    try:
        commit = provenance.check(folder, PublicKey.parse(public))
    except SigningError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"signed, and built from commit {commit}")


if __name__ == "__main__":
    main()
