# SPDX-License-Identifier: Apache-2.0
"""The operator's file: each error is one line that says where, and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jitgen.errors import SettingError
from jitgen.server.check import config_errors
from jitgen.server.settings import parse_settings, read_settings
from jitgen.server.tokens import new_token, read_tokens

OPEN: dict[str, Any] = {"access": {"anonymous": ["read"]}}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "access: every request would be refused"),
        (OPEN | {"lisen": {}}, "lisen: is not known; allowed: listen, store"),
        (OPEN | {"listen": {"prot": 1}}, "listen.prot: is not known; allowed here: host, port"),
        (OPEN | {"listen": {"port": "80"}}, "listen.port: must be an integer from 0 to 65535"),
        (OPEN | {"listen": 3}, "listen: must be a table (got 3)"),
        (OPEN | {"store": {"memory": "big"}}, "store.memory: must be a size such as"),
        (OPEN | {"store": {"root": "cache"}}, "store.root: must be an absolute path"),
        (OPEN | {"limits": {"wait_s": -1}}, "limits.wait_s: must be seconds, from 0 to 3600"),
        (OPEN | {"uploads": {"accept": "yes"}}, "uploads.accept: must be off or unattested or"),
        (OPEN | {"uploads": {"accept": "rebuild"}}, "uploads.accept: rebuild is for signing"),
        (OPEN | {"signing": {"gate": "emulator"}}, "signing.gate: is for what is signed"),
        (OPEN | {"signing": {"key": "/none/such"}}, "signing.key: there is no file /none/such"),
        (OPEN | {"toolchains": []}, "toolchains: must be one [[toolchains]] table or more"),
        (OPEN | {"toolchains": [{}, {}]}, "toolchains: two are called 'default'"),
        (OPEN | {"listen": {"client_ca": "/x"}}, "listen.client_ca: needs a certificate"),
        ({"access": {"anonymous": ["root"]}}, "access.anonymous: must be a list of some of read"),
        (
            {"access": {"anonymous": ["admin"]}, "listen": {"host": "0.0.0.0"}},  # noqa: S104
            "access.anonymous: write and admin are for tokens alone",
        ),
        (OPEN | {"ui": "no"}, "ui: must be true or false"),
    ],
)
def test_each_mistake_is_one_line(document: dict[str, Any], says: str) -> None:
    """One error, one line, and it says what is allowed."""
    _, lines = parse_settings(document)

    assert any(line.startswith(says) for line in lines), lines
    assert len(lines) == 1 + ("/x" in str(document))  # the file of client_ca is not there either


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Who wrote three things wrong hears of all three, and of the file."""
    file = tmp_path / "service.toml"
    file.write_text(
        '[listen]\nport = -1\n[store]\nroot = "x"\n[access]\nanonymous = ["read"]\nx = 1'
    )

    with pytest.raises(SettingError) as error:
        read_settings(file)

    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{file}: ") for line in lines)
    assert config_errors(file) == lines


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    """A broken file is one line, too."""
    file = tmp_path / "service.toml"
    file.write_text("[listen\n")

    assert len(config_errors(file)) == 1
    assert "no TOML" in config_errors(file)[0]


class TestTokens:
    """The file of tokens."""

    def test_a_new_one_is_known_by_its_text_alone(self, tmp_path: Path) -> None:
        secret, table = new_token("pods", ("read", "compile"))
        file = tmp_path / "tokens.toml"
        file.write_text(table)
        found = read_tokens(file)

        assert secret not in table
        token = found.of(secret)
        assert token is not None
        assert (token.name, token.scopes) == ("pods", ("read", "compile"))
        assert found.of(secret[:-1]) is None
        assert found.of(token.sha256) is None
        assert found.of(None) is None

    def test_one_ends_on_its_day(self, tmp_path: Path) -> None:
        secret, table = new_token("old", ("read",))
        file = tmp_path / "tokens.toml"
        file.write_text(table + "not_after = 2020-01-01\n")

        assert read_tokens(file).of(secret) is None

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("x = 1", "x: is not known"),
            ('[[token]]\nname = "a"', "token[0].sha256: is missing"),
            ('[[token]]\nname = "a"\nsha256 = "1"\nscopes = []', "token[0].sha256: must be a SHA"),
            ('[[token]]\nname = ""\nsha256 = "1"\nscopes = []', "token[0].name: must be a text"),
            ('[[token]]\nname = "a"\nscopes = []', "token[0].scopes: must have one at least of"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, text: str, says: str) -> None:
        file = tmp_path / "tokens.toml"
        file.write_text(text)

        with pytest.raises(SettingError, match="tokens") as error:
            read_tokens(file)

        assert says in str(error.value)

    def test_a_file_that_others_may_write_to_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens.toml"
        file.write_text(new_token("a", ("read",))[1])
        file.chmod(0o666)

        with pytest.raises(SettingError, match="chmod go-w"):
            read_tokens(file)
