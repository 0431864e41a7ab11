# SPDX-License-Identifier: Apache-2.0
"""
A random history of a host: documents of all kinds, restarts, damage, errors, kills, power losses.

Beside the product stands a model: the sets of documents that the root remembers and that the
process has gone by, nothing left out, and `leading` of them. After each step the two must agree
on which document is in use, or that none is, and on whose signatures count.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jitgen.cache import trusted
from jitgen.cache.trusted import Trusted
from jitgen.errors import SigningError
from jitgen.settings import settings
from tests.chaos.power import Trace, disk_after, recording

from . import faults
from .trust_fakes import DAMAGE, RECORD, Host, signed_by
from .trust_lineage import (
    KEYS,
    Doc,
    Known,
    comes_from,
    fork,
    is_sound,
    known,
    leading,
    lineage,
    of_bytes,
)

SIGNED = [signed_by(key) for key in KEYS]
_STEPS = 14
_MOST_CALLS = 80  # of the operating system, to look and to take a document


class World:
    """
    One host, and what must be true of it.

    Attributes:
        counts: Number of events of each kind.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.host = Host(folder)
        self.line = lineage(self.chance, self.chance.randint(3, 8))
        self.other = lineage(self.chance, 2, first=7)
        self.all: dict[str, Doc] = known(*self.line, *self.other)
        self.disk: Known | None = None
        self.proc: Known | None = None
        self.saved: bytes | None = None
        self.configured: tuple[Doc, tuple[Doc, ...]] = (self.line[0], ())
        self._configure(self.line[0], ())
        self.process = self.host.process()

    def run(self) -> Counter[str]:
        """Let a dozen things happen; raises AssertionError where the product is wrong."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (6, self.offer),
            (4, self.restart),
            (3, self.configure),
            (2, self.damage),
            (3, self.repair),
            (4, self.err),
            (3, self.kill),
            (2, self.race),
            (2, self.lose_power),
            (1, self.change_mode),
            (1, self.adopt),
            (1, self.remove),
        ]
        with settings.scope(trust=self.host.file, verify="remote"):
            self.check()
            for _ in range(_STEPS):
                step = self.chance.choices([x for _, x in steps], [x for x, _ in steps])[0]
                self.counts[step.__name__] += 1
                step()
                self.check()
        return self.counts

    # What happens

    def offer(self) -> None:
        """A place hands out a document."""
        one, history = self._some()
        data = one.data(history)
        if self.chance.random() < 0.1:
            data = data[: self.chance.randrange(len(data))]
            one = one.stripped(frozenset())
        expected = self._accepting(one, history)
        found = self._outcome(lambda: self.process.accept(data))
        assert found == (None if expected is None else expected.name)
        self.counts["taken" if found else "not taken"] += 1

    def restart(self) -> None:
        """The process ends, and another one starts."""
        self.process, self.proc = self.host.process(), None

    def configure(self) -> None:
        """The operator puts a file in place: an old one, a new one, one of another lineage."""
        self._configure(*self._some())

    def damage(self) -> None:
        """Something happens to what the root remembers."""
        if self.saved is None and self.host.memory.is_file():
            self.saved = self.host.memory.read_bytes()
            self.chance.choice(DAMAGE)(self.host.memory)

    def repair(self) -> None:
        """Restore what the root remembered before the damage."""
        if self.saved is not None:
            self._clear()
            self.host.memory.write_bytes(self.saved)
            self.host.memory.chmod(0o600)
            self.saved = None

    def err(self) -> None:
        """Calls of the operating system fail, once or from then on."""
        plan = faults.Plan(
            self.chance.randrange(_MOST_CALLS),
            self.chance.choice(faults.ERRORS),
            self.chance.random() < 0.5,
        )
        one, history = self._later()
        before = self._tops()
        with faults.failing(self.host.folder, plan):
            expected = self._accepting(one, history)
            found = self._outcome(lambda: self.process.accept(one.data(history)))
        assert found in (None, None if expected is None else expected.name)
        self.counts["errors met"] += plan.hits
        self._take_over(before)

    def kill(self) -> None:
        """The process is killed in the middle of taking a document."""
        plan = faults.Plan(self.chance.randrange(_MOST_CALLS), 0)
        one, history = self._later()
        before = self._tops()
        child = os.fork()
        if child == 0:
            with suppress(BaseException), faults.failing(self.host.folder, plan):
                self.process.accept(one.data(history))
            os._exit(0)
        self.counts["killed"] += os.waitpid(child, 0)[1] == 9
        self.restart()
        self._take_over(before)

    def race(self) -> None:
        """Two processes take two documents at once."""
        before, offers = self._tops(), [self._later(), self._later()]
        ready, go = os.pipe()
        children = []
        for one, history in offers:
            child = os.fork()
            if child == 0:
                code = 1
                with suppress(SigningError):
                    os.close(go)
                    os.read(ready, 1)  # until the parent closes its end
                    self.process.accept(one.data(history))
                    code = 0
                os._exit(code)
            children.append(child)
        os.close(ready)
        os.close(go)
        taken = [os.waitpid(child, 0)[1] == 0 for child in children]
        self.restart()
        self._take_over(before)
        if self.host.mode == "rw" and self.saved is None:
            now = None if self.disk is None else leading(self.disk)
            for (one, _), is_taken in zip(offers, taken, strict=True):
                assert not is_taken or (now is not None and now.version >= one.version)
        self.counts["taken in a race"] += sum(taken)

    def lose_power(self) -> None:
        """The power fails, some time after the process has begun to take a document."""
        root = self.host.folder / "root"
        if self.host.mode != "rw" or self.saved is not None or not self.host.memory.is_file():
            return
        template = self.host.folder / "template"
        shutil.copytree(root, template)
        one, history = self._later()
        before = self._tops()
        with recording(root) as calls:
            self._outcome(lambda: self.process.accept(one.data(history)))
        after = self.host.memory.read_bytes()
        is_late = self.chance.random() < 0.5
        chance = _Late(self.chance.random()) if is_late else random.Random(self.chance.random())
        tree = disk_after(_renamed(calls, template), chance)
        shutil.rmtree(template)
        shutil.rmtree(root)
        for name, content in sorted(tree.items()):
            path = self.host.folder / "root" / Path(name).relative_to("cache")
            if content is None:
                path.mkdir(mode=0o700)
            else:
                path.write_bytes(content)
                path.chmod(0o600)
        self.restart()
        if is_late:
            assert self.host.memory.read_bytes() == after
        self._take_over(before)

    def change_mode(self) -> None:
        """The next process may write the root, only read it, or has none."""
        self.host.mode = self.chance.choice(["rw", "rw", "ro", "off"])
        self.restart()

    def adopt(self) -> None:
        """The operator begins anew with what is configured."""
        if self.host.mode != "rw":
            return
        one, history = self.configured
        disk = None if self.saved is not None or self.disk is None else leading(self.disk)
        is_older = disk is not None and self._is_older(one, disk)
        found = self._outcome(lambda: self.process.adopt()[0])
        if not is_sound(one, history) or is_older:
            assert found is None
            return
        assert found == one.name
        self.saved, self.disk, self.proc = None, known(*history, one), None
        self.counts["adopted"] += 1

    def remove(self) -> None:
        """The operator removes what is remembered, together with the process."""
        self._clear()
        self.saved, self.disk = None, None
        self.restart()

    # What must be true

    def check(self) -> None:
        """The document in use, and whose signatures count, are what they must be."""
        expected = self._current()
        found = self._outcome(self.process.current)
        assert found == (None if expected is None else expected.name)
        for number in self.chance.sample(range(len(SIGNED)), 2):
            is_accepted = not self.process.refusal(RECORD, SIGNED[number])
            assert is_accepted == (expected is not None and number in expected.good)
        self.counts["refused" if expected is None else "in use"] += 1
        if self.host.mode == "rw" and self.saved is None and self.disk is not None:
            latest = leading(self.disk)
            assert latest is not None
            assert of_bytes(self.host.memory.read_bytes())[0][0] == latest.name

    def _current(self) -> Doc | None:
        """Return the document that must be in use; None: none. It is remembered then."""
        if self.saved is not None and self.host.mode != "off":
            return None
        one, history = self.configured
        if not is_sound(one, history):
            return None
        disk = {} if self.disk is None or self.host.mode == "off" else self.disk
        together = known(*history, one, *disk.values(), *(self.proc or {}).values())
        latest = leading(together)
        if latest is not None:
            self._remember(together)
        return latest

    def _accepting(self, one: Doc, history: tuple[Doc, ...]) -> Doc | None:
        """Return the document that must be in use after `one` was offered; None: it is refused."""
        before = self._current()
        if before is None or not is_sound(one, history) or not comes_from(one, history, before):
            return None
        together = known(*(self.proc or {}).values(), *history, one)
        if leading(together) is None:
            return None
        self._remember(together)
        return one

    def _remember(self, together: Known) -> None:
        self.proc = together
        if self.host.mode == "rw":
            self.disk = together

    def _outcome(self, act: Callable[[], object]) -> str | None:
        """Return the name of the document that `act` returns; None where it refuses."""
        try:
            found = act()
        except SigningError:
            return None
        return of_bytes(found.data)[0][0]  # type: ignore[attr-defined]

    def _tops(self) -> tuple[Doc | None, Doc | None]:
        disk = None if self.disk is None else leading(self.disk)
        return disk, None if self.proc is None else leading(self.proc)

    def _take_over(self, before: tuple[Doc | None, Doc | None]) -> None:
        """
        After trouble, check that no later document was lost and none is torn; the model goes on
        from there.
        """
        disk, proc = before
        if self.saved is None:
            self.disk = None
            if self.host.memory.is_file():
                found = [self._seen(*x) for x in of_bytes(self.host.memory.read_bytes())]
                self.disk = known(*found)
            now = None if self.disk is None else leading(self.disk)
            assert disk is None or (now is not None and now.version >= disk.version)
        seen: Trusted | None = self.process if trusted._seen else None
        found = [y for x in trusted._seen.values() for y in of_bytes(x.latest.data)]
        self.proc = known(*(self._seen(*x) for x in found)) if seen is not None else None
        now = None if self.proc is None else leading(self.proc)
        assert proc is None or seen is None or (now is not None and now.version >= proc.version)

    def _seen(self, name: str, signers: frozenset[int]) -> Doc:
        return self.all[name].stripped(signers)

    # What there is

    def _some(self) -> tuple[Doc, tuple[Doc, ...]]:
        """Return a document that may turn up, and those that are said to have led to it."""
        kind = self.chance.random()
        if kind < 0.1:
            return self.chance.choice(self.other), ()
        number = self.chance.randrange(len(self.line))
        one = self.line[number]
        if kind < 0.2:
            one = fork(self.chance, one)
            self.all[one.name] = one
            return one, tuple(self.line[:number]) if self.chance.random() < 0.3 else ()
        if kind < 0.3:
            one = one.stripped(frozenset({self.chance.choice(sorted(one.signers))}))
        history = [x for x in self.line[:number] if self.chance.random() < 0.7]
        return one, tuple(history) if self.chance.random() < 0.4 else ()

    def _later(self) -> tuple[Doc, tuple[Doc, ...]]:
        """Return most often a document that will be taken: the way of taking it is of interest."""
        top = max((x.version for x in self._tops() if x is not None), default=0)
        left = [number for number, one in enumerate(self.line) if one.version > top]
        if not left or self.chance.random() < 0.3:
            return self._some()
        number = self.chance.choice(left)
        return self.line[number], tuple(self.line[:number])

    def _is_older(self, one: Doc, disk: Doc) -> bool:
        """Return whether what is remembered, as it lies there, follows from `one`."""
        if disk.version <= one.version:
            return False
        return any(
            name == one.name or (self.all[name].version > one.version and signers & one.standing)
            for name, signers in of_bytes(self.host.memory.read_bytes())
        )

    def _configure(self, one: Doc, history: tuple[Doc, ...]) -> None:
        self.configured = (one, history)
        self.host.configure(one.data(history))

    def _clear(self) -> None:
        path = self.host.memory
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
            missing_ok=True
        )


class _Late(random.Random):
    """Random numbers by which the power fails when all calls are done."""

    is_first = True

    def randrange(self, start: int, *arguments: int) -> int:  # type: ignore[override]
        """Return the largest possible number at the first call, later random ones."""
        if self.is_first:
            self.is_first = False
            return start - 1
        return super().randrange(start, *arguments)


def _renamed(calls: list[dict[str, object]], template: Path) -> Trace:
    """Return a trace whose root is called as `tests.chaos.power` calls one."""
    for call in calls:
        paths: list[str] = call["paths"]  # type: ignore[assignment]
        call["paths"] = [f"cache{path.removeprefix('root')}" for path in paths]
    return Trace(name="trust", template=template, calls=calls)
