"""What the checks of doctor are made of: the facts that they look at, and what one of them says.

`doctor_checks` and `doctor_gpus` use it; nothing here looks at anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exporter.config import Config
from exporter.doctor_look import Seen, Surroundings

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at. `problems`: why the configuration file was not taken."""

    config: Config
    problems: tuple[str, ...]
    around: Surroundings
    seen: Seen


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the answer. `do` is empty where nothing is to be done."""

    status: str  # ok, warn, fail
    saw: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table."""

    name: str
    looks_at: str
    judge: Callable[[Facts], Iterable[Verdict]]
