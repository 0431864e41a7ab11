# SPDX-License-Identifier: Apache-2.0
"""Where compilers write: what lies there is imported and published, so others may not reach it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from jitgen.cache import scratch as module
from jitgen.cache.scratch import PREFIX, scratch
from jitgen.errors import ResourceError

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What TMPDIR names."""
    path = tmp_path / "temporary"
    path.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def made_in() -> Path:
    with scratch() as folder:
        (folder / "kernel.py").write_text("pass")
        return folder.parent


class TestPlace:
    def test_usual(self, place: Path) -> None:
        assert made_in() == place
        assert not list(place.iterdir())

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o2775])
    def test_others_may_rename_there(self, place: Path, mode: int) -> None:
        """They put their own kernel.py in the place of ours, and the compiler imported it."""
        place.chmod(mode)

        assert made_in() != place

    def test_the_sticky_bit_keeps_them_from_it(self, place: Path) -> None:
        place.chmod(0o1777)

        assert made_in() == place

    @needs_root
    @pytest.mark.parametrize("mode", [0o755, 0o1777])
    def test_it_belongs_to_another_user(self, place: Path, mode: int) -> None:
        """The owner of a folder renames what is in it, sticky bit or not."""
        place.chmod(mode)
        os.chown(place, STRANGER, STRANGER)

        assert made_in() != place

    @needs_root
    def test_a_folder_above_belongs_to_another_user(self, place: Path) -> None:
        os.chown(place.parent, STRANGER, STRANGER)

        assert made_in() != place

    def test_a_link(self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What counts is where it leads, which is what is used from then on."""
        place.chmod(0o777)
        link = tmp_path / "link"
        link.symlink_to(place)
        monkeypatch.setattr(tempfile, "tempdir", str(link))

        assert made_in() not in (place, link)

    def test_a_relative_one(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A compile process, which works in another folder, did not find it."""
        monkeypatch.chdir(place.parent)
        monkeypatch.setattr(tempfile, "tempdir", place.name)

        assert made_in() == place

    def test_nowhere(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The message says what is wrong, and what to do."""
        place.chmod(0o777)
        monkeypatch.setattr(module, "_MEMORY", place)

        with pytest.raises(ResourceError, match=r"others could exchange .* set TMPDIR to a folder"):
            made_in()
        assert not list(place.glob(f"{PREFIX}*"))
