"""What a look at the machine gives: one check a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "failed"]
"""``note``: worth knowing. ``warning``: it will hurt. ``failed``: a training would not do what it should."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What: ``"torch"``, ``"disk"``.
        state: How it stands.
        fact: One sentence: what was found.
        fix: What to do; empty where there is nothing to do.
        details: The same for programs; plain values.
    """

    name: str
    state: State
    fact: str
    fix: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Checkup:
    """All checks of one look. It shows itself as a table in a notebook, as lines at a prompt.

    Attributes:
        checks: In the order in which they are shown.
        required: What had to be there; empty if nothing had.
    """

    checks: tuple[Check, ...]
    required: str = ""

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """What failed."""
        return tuple(check for check in self.checks if check.state == "failed")

    def __getitem__(self, name: str) -> Check:
        """The check of a name.

        Raises:
            KeyError: There is none.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(check.name == name for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(lines(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from perdure.checkup.page import page

        return page(self)

    def as_data(self) -> dict[str, Any]:
        """Plain values, as ``perdure doctor --json`` prints them."""
        return {
            "version": 1,
            "ok": self.ok,
            "required": self.required,
            "checks": [
                {
                    "name": check.name,
                    "state": check.state,
                    "fact": check.fact,
                    "fix": check.fix,
                    "details": dict(check.details),
                }
                for check in self.checks
            ],
        }


def lines(checkup: Checkup) -> list[str]:
    """A line a check: state, name, fact; below it what to do."""
    width = max((len(check.name) for check in checkup.checks), default=0)
    shown = []
    for check, remedy in with_remedies(checkup):
        shown.append(f"{check.state:<8} {check.name:<{width}}  {one_line(check.fact)}")
        if remedy:
            shown.append(f"{'':<8} {'':<{width}}  {one_line(remedy)}")
    return shown


def one_line(text: str) -> str:
    """Without line breaks and control characters: names of files and words of drivers must not steer a terminal."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in " ".join(text.split()))


def with_remedies(checkup: Checkup) -> Iterator[tuple[Check, str]]:
    """Each check with what to do, in words; a fix that was said before is not said again."""
    said: dict[str, str] = {}
    for check in checkup.checks:
        word = "fix" if check.state in ("warning", "failed") else "hint"
        before = said.get(check.fix)
        text = f"{word}: as for {before}" if before else f"{word}: {check.fix}"
        said.setdefault(check.fix, check.name)
        yield check, text if check.fix else ""


def counted(names: Sequence[str]) -> str:
    """Equal names put together: ``"2 x Tesla T4, Tesla P100"``."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def summary(checkup: Checkup) -> str:
    """How many failed, in one sentence."""
    warnings = sum(check.state == "warning" for check in checkup.checks)
    tail = f", {warnings} warning{'' if warnings == 1 else 's'}" if warnings else ""
    if checkup.ok:
        return f"{len(checkup.checks)} check{'' if len(checkup.checks) == 1 else 's'}, none failed{tail}"
    return f"{len(checkup.failed)} of {len(checkup.checks)} checks failed{tail}"
