# SPDX-License-Identifier: Apache-2.0
"""
Values of the JITGEN_* variables; `jitgen.support.variables` has their table.

A value is read when it is first needed, never at import and never on the warm path of a call. A
program sets one with ``jitgen.settings.on_miss = "error"``, which wins over the environment; a bad
value raises where it is read, naming the variable and what is allowed. `Settings.check_environment`
reads all of them: the first session does so, and the command line before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from jitgen.errors import SettingError
from jitgen.support.text import shown
from jitgen.support.variables import OTHERS, TABLE, Setting

_BY_NAME = {setting.name: setting for setting in TABLE}
_BY_VARIABLE = {setting.variable: setting for setting in TABLE}
_VARIABLES = {setting.name: setting.variable for setting in TABLE}


class Settings:
    """
    The settings of this process, one attribute for each row of `TABLE`.

    Order: the session's value, a value set from Python, the environment variable, the default.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_set", {})
        object.__setattr__(self, "_watchers", {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _BY_NAME:
            raise AttributeError(f"no setting {name!r}; settings: {', '.join(_BY_NAME)}")
        return self.origin(name)[0]

    def __setattr__(self, name: str, value: Any) -> None:
        self._set[name] = _read(name, value)
        self._tell({name})

    def __delattr__(self, name: str) -> None:
        self._set.pop(name, None)
        self._tell({name})

    def watch(self, name: str, call: Callable[[], object]) -> None:
        """Run `call` whenever the program sets `name`, or removes its value."""
        self._watchers.setdefault(name, []).append(call)

    def _tell(self, names: set[str]) -> None:
        for name in names & self._watchers.keys():
            for call in self._watchers[name]:
                call()

    def origin(self, name: str) -> tuple[Any, str]:
        """
        Return the value of a setting and its origin: ``session``, ``program``, ``environment`` or
        ``default``.
        """
        setting = _BY_NAME[name]
        if name in (inside := _inside.get()):
            return inside[name], "session"
        if name in self._set:
            return self._set[name], "program"
        text = os.environ.get(_VARIABLES[name])
        if text:
            return _parsed(setting, text, setting.variable), "environment"
        default = setting.default
        return (default() if callable(default) else default), "default"

    def parsed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return `values`, by name of a setting, converted to the types of these settings.

        Raises:
            SettingError: A name is not a setting, or its value is not allowed.
        """
        return {name: _read(name, value) for name, value in values.items()}

    @contextmanager
    def inside(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Apply values that `parsed` returned, in this context, for the length of a with block."""
        token = _inside.set(values)
        try:
            yield
        finally:
            _inside.reset(token)

    def check_environment(self) -> None:
        """
        Check every variable that is set, so that a wrong value is reported when a program starts
        and not hours later. A variable that is no setting gives a warning, once.

        Raises:
            SettingError: Values are not allowed; the message names all of them.
        """
        mistakes = []
        present = {name for name in os.environ if name.startswith("JITGEN_")}
        for name in [name for name in _BY_VARIABLE if name in present]:
            if text := os.environ[name]:
                try:
                    _parsed(_BY_VARIABLE[name], text, name)
                except SettingError as error:
                    mistakes.append(str(error))
        for name in sorted(present - {*_BY_VARIABLE, *OTHERS}):
            from jitgen.events import warn_once  # which imports what every program waits for

            warn_once(f"variable {name}", "%s is not known and ignored%s", name, nearest(name))
        if mistakes:
            raise SettingError("; ".join(mistakes))

    @contextmanager
    def scope(self, **values: Any) -> Iterator[None]:
        """Set `values` for the length of a with block, then restore what was set before."""
        before = dict(self._set)
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            object.__setattr__(self, "_set", before)
            self._tell(set(values))


def nearest(name: str) -> str:
    """
    Return a hint on the variable that an unknown `name` may have been meant for; empty if none is
    close.
    """
    import difflib

    meant = name.removeprefix("JITGEN_").lower()
    found = difflib.get_close_matches(meant, _BY_NAME, 1)
    return f"; did you mean {_BY_NAME[found[0]].variable}?" if found else ""


def _read(name: str, value: Any) -> Any:
    """Return the value of the setting `name`, parsed from a Python value."""
    if name not in _BY_NAME:
        raise SettingError(f"no setting {name!r}; settings: {', '.join(_BY_NAME)}")
    if isinstance(value, (tuple, list)):  # several, as they stand in an environment variable
        value = _BY_NAME[name].separator.join(map(str, value))
    return _parsed(_BY_NAME[name], str(value), f"settings.{name}")


def _parsed(setting: Setting, text: str, where: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as error:
        raise SettingError(f"{where}={shown(text)} is not allowed: it must be {error}") from None


_inside: ContextVar[Mapping[str, Any]] = ContextVar("jitgen.settings", default=MappingProxyType({}))
"""Settings of this context's session."""

settings = Settings()


def place(name: str) -> str:
    """
    Return the name by which a user has set a setting, or can set it: its variable, or
    ``settings.<name>`` for a value of a program or session.
    """
    is_variable = settings.origin(name)[1] in ("environment", "default")
    return _BY_NAME[name].variable if is_variable else f"settings.{name}"
