# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose in small kernels."""

from __future__ import annotations

from dataclasses import dataclass

from jitgen.errors import Deadlock, MachineFault

WRONG = "wrong result"


@dataclass(frozen=True, slots=True)
class Mutation:
    """
    A mistake in the text of a kernel.

    Attributes:
        name: Description of the mistake.
        old, new: The text that it replaces, everywhere, and by what.
        found: What the message must contain, in this order; `WRONG` if the result shows it.
        is_late: Whether only the deferred mode finds it, because eager work is done by chance when
            a test asks; else the eager one does.
    """

    name: str
    old: str
    new: str
    found: tuple[str, ...]
    is_late: bool = False

    def edit(self, text: str) -> str:
        """Return `text` with the mistake."""
        assert self.old in text
        assert self.old != self.new
        return text.replace(self.old, self.new)


def assert_found(messages: list[str], wanted: tuple[str, ...]) -> None:
    def matches(message: str) -> bool:
        for part in wanted:
            _, found, message = message.partition(part)
            if not found:
                return False
        return True

    assert any(map(matches, messages)), "\n".join(messages) or "nothing was found"


def by_name(mutation: Mutation) -> str:
    return mutation.name


def text_of(fault: MachineFault) -> str:
    """Return what ended a kernel too early, its kind first."""
    return f"{'deadlock' if isinstance(fault, Deadlock) else 'fault'}: {fault}"
