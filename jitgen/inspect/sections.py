# SPDX-License-Identifier: Apache-2.0
"""The sections of the page of one kernel, each made from a part of the gathered data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from jitgen.inspect import code, plots
from jitgen.inspect.emulated import Emulation
from jitgen.inspect.kernel import Inspected
from jitgen.inspect.markup import Markup, fields, joined, table, tag
from jitgen.inspect.measured import Measurement, Speed
from jitgen.inspect.memory import MemoryMap
from jitgen.inspect.viewer import lines_to

_MOST_OPERATIONS = 8  # named behind a class


def cards(kernel: Inspected) -> Markup:
    """Return the most important numbers of the kernel."""
    return tag(
        "ul",
        *(tag("li", tag("b", value), tag("span", name)) for name, value in _cards(kernel)),
        class_="cards",
    )


def _cards(kernel: Inspected) -> Iterator[tuple[str, object]]:
    found, machine = kernel.resources, kernel.listing(code.SASS)
    if found is not None:
        yield "registers a thread", found.registers
        yield "threads a CTA", found.threads
        spills = found.spill_instructions
        yield "spill instructions", "unknown" if spills is None else spills
        yield "code", f"{found.code_bytes:,} B"
    if kernel.shared is not None:
        yield "shared memory a CTA", f"{kernel.shared.total:,} B"
    if kernel.tensor is not None:
        yield "columns of tensor memory", kernel.tensor.total
    if kernel.occupancy is not None:
        yield "CTAs on an SM", kernel.occupancy.ctas
    if machine is not None:
        yield "machine instructions", f"{machine.operations.total():,}"
    if kernel.emulation is not None:
        word, kind = ("right", "good") if kernel.emulation.is_right else ("NOT right", "bad")
        yield "in the emulator", tag("span", word, class_=kind)


def notes(kernel: Inspected) -> Markup:
    """Return the notes of the kernel, and why it is excluded on this device if it is."""
    every = list(kernel.notes)
    if kernel.speed.excluded:
        every.append(f"It is excluded on this device: {kernel.speed.excluded}")
    return tag("ul", *(tag("li", note) for note in every), class_="notes") if every else joined(())


def templates(kernel: Inspected, number: int) -> Markup | None:
    """
    Return the templates from which the source is made, each with a link to its first line; None if
    they are not known.
    """
    if not kernel.parts:
        return None
    rows = [
        (
            tag("span", "\u2003" * part.depth, part.partial, class_="name"),
            "" if part.first is None else lines_to(number, part.first),
            "" if part.last is None else part.last,
            part.own_lines,
        )
        for part in kernel.parts
    ]
    words = tag(
        "p",
        "Each with what it includes below it. Own lines are those that no included file makes.",
        class_="note",
    )
    return joined((words, table(("template", "from", "to line", "own lines"), rows, [2, 3])))


def instructions(kernel: Inspected) -> Markup | None:
    """Return the number of machine instructions of each class; None without SASS."""
    machine = kernel.listing(code.SASS)
    if machine is None:
        return None
    found = code.by_class(machine.operations)
    rows = [
        (code.class_title(name), counts.total(), _operations(counts))
        for name, counts in found.items()
    ]
    return joined(
        (
            plots.bars(f"Machine instructions of {kernel.name} by class", rows),
            table(("class", "instructions", "most frequent"), rows, [1]),
        )
    )


def _operations(counts: Counter[str]) -> str:
    text = ", ".join(f"{name} {n}" for name, n in counts.most_common(_MOST_OPERATIONS))
    return text + ", ..." * (len(counts) > _MOST_OPERATIONS)


def memory(kernel: Inspected) -> Markup | None:
    """Return the maps of shared and tensor memory; None if neither has one."""
    parts = [
        part
        for title, found in (("Shared memory", kernel.shared), ("Tensor memory", kernel.tensor))
        if found is not None and found.regions
        for part in _map(title, kernel, found)
    ]
    return joined(parts) if parts else None


def _map(title: str, kernel: Inspected, found: MemoryMap) -> Iterator[Markup]:
    words = f"{found.total:,} {found.unit} of each CTA"
    if found.limit:
        words += f", of {found.limit:,} that it may have"
    yield tag("h3", f"{title}: {words}")
    yield plots.memory(f"{title} of {kernel.name}", found)
    names = plots.key(region.name for region in found.regions)
    rows = [
        (name, f"{region.start:,}", f"{region.size:,}", region.detail)
        for name, region in zip(names, found.regions, strict=True)
    ]
    yield table(("region", "starts at", found.unit, "holds"), rows, [1, 2])


def occupancy(kernel: Inspected) -> Markup | None:
    """Return how many CTAs fit on an SM, and what limits them; None if that is not known."""
    found = kernel.occupancy
    if found is None:
        return None
    rows = [
        (
            limit.resource,
            limit.needs,
            limit.has,
            tag("b", limit.ctas) if limit.ctas == found.ctas else limit.ctas,
        )
        for limit in found.limits
    ]
    many = "CTA" if found.ctas == 1 else "CTAs"
    words = (
        f"{found.ctas} {many} of {found.threads} threads on an SM: {found.share:.0%} of its warps."
    )
    extra = (
        ""
        if found.ctas
        else " No CTA fits by these numbers: registers move between warps after the start."
    )
    return joined(
        (
            tag("p", words, extra),
            table(("resource", "a CTA takes", "an SM has", "CTAs"), rows, [3]),
        )
    )


def speed(found: Speed, name: str) -> Markup:
    """
    Return the measurements with the device's limits, and the problems for which the kernel is
    chosen.
    """
    parts: list[object] = []
    if drawing := plots.roofline(f"Roofline of {name}", found.measurements, found.roofs):
        words = [
            f"{each.device}: {each.flop_rate / 1e12:,.0f} TFLOP/s at the clock under load, "
            f"{each.byte_rate / 1e12:.1f} TB/s"
            for each in found.roofs
        ]
        parts += [drawing, tag("p", "; ".join(words), ". Full: the fastest kernel.", class_="note")]
    if found.measurements:
        parts.append(_measurements(found.measurements))
    else:
        parts.append(
            tag("p", "Nothing was measured of it: jitgen tune does, on the device.", class_="note")
        )
    parts.append(tag("h3", "Why it is chosen"))
    if found.reasons:
        rows = [
            (
                tag("span", reason.problem.slug, class_="name"),
                reason.source,
                reason.why,
                reason.plan,
                reason.device,
            )
            for reason in found.reasons
        ]
        parts.append(table(("problem", "decided by", "reason", "plan", "device"), rows))
    else:
        none = (
            "For no problem that was measured, and for none of the plans that come with jitgen, on "
            "any device that the target knows."
        )
        parts.append(tag("p", none, class_="note"))
    return joined(parts)


def _measurements(found: tuple[Measurement, ...]) -> Markup:
    heads = ("problem", "us", "TFLOP/s", "GB/s", "behind the best", "of", "device", "date", "by")
    rows = [
        (
            tag("span", each.problem.slug, class_="name"),
            f"{each.time_us:,.1f}",
            f"{each.flop_rate / 1e12:,.0f}" if each.flop else "",
            f"{each.byte_rate / 1e9:,.0f}",
            "best" if each.time_us <= each.best_us else f"{each.time_us / each.best_us - 1:.1%}",
            each.rivals,
            each.device,
            each.date[:10],
            each.source,
        )
        for each in found
    ]
    return table(heads, rows, range(1, 6))


def numbers(kernel: Inspected) -> Markup:
    """Return the numbers that the rules derive from the config and pass to the template."""
    rows = [
        (tag("span", number.name, class_="name"), f"{number.value:,}", number.meaning)
        if not isinstance(number.value, bool)
        else (tag("span", number.name, class_="name"), str(number.value), number.meaning)
        for number in kernel.numbers
    ]
    return table(("number", "value", "meaning"), rows, [1])


def emulation(found: Emulation | None, number: int) -> Markup:
    """Return the findings of the emulator, or a hint how to run it if it did not run."""
    if found is None:
        words = "It was not asked: jitgen inspect --emulate runs it, and marks what it executed."
        return tag("p", words, class_="note")
    done, total = found.instructions
    verdict = tag("b", "All right." if found.is_right else "NOT right.")
    words = f" {done:,} of {total:,} instructions were executed by all problems together."
    parts = [tag("p", verdict, words, class_="good" if found.is_right else "bad")]
    trials = [
        (
            trial.problem,
            trial.values,
            "yes" if trial.is_right else "NO",
            trial.wrong,
            f"{trial.largest:.1e}",
            ", ".join(f"{mode} {seconds:.1f} s" for mode, seconds in trial.seconds.items()),
        )
        for trial in found.trials
    ]
    heads = ("problem", "values", "right", "wrong values", "largest error", "modes")
    parts.append(table(heads, trials, [3, 4]))
    if found.findings:
        rows = [
            (each.severity, each.kind, each.message, lines_to(number, each.origin), each.context)
            for each in found.findings
        ]
        parts.append(tag("h3", "Findings"))
        parts.append(table(("weight", "kind", "what", "where", "when"), rows))
    functions = [
        (name, f"{of.executed} of {of.total}", _links(number, of.never))
        for name, of in found.functions.items()
    ]
    parts.append(tag("h3", "Lines that were executed, by function"))
    parts.append(table(("function", "lines", "never executed"), functions, [1]))
    return joined(parts)


def _links(number: int, never: tuple[int, ...]) -> Markup:
    parts: list[object] = []
    for line in never:
        parts += [", "] * bool(parts) + [lines_to(number, line)]
    return joined(parts)


def key(kernel: Inspected) -> Markup:
    """Return the key document, and the entry of the cache."""
    text = json.dumps(kernel.key_document, indent=2, sort_keys=True)
    parts = [fields([("key", tag("span", kernel.key, class_="name"))])]
    if kernel.entry:
        parts += [tag("h3", "Entry"), fields(kernel.entry.items())]
    else:
        parts.append(tag("p", "There is no entry in the cache.", class_="note"))
    parts += [tag("h3", "Key document"), tag("pre", text, tabindex=0)]
    return joined(parts)
