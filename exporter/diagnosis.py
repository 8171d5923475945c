"""From facts to findings: asks each rule of the table in its turn, and keeps the time of what it hears.

Called by the session with the facts of each whole second. A finding appears when its condition has stood for `hold_s`
without a break, and goes when it has not been true for `clear_s`: short disturbances neither raise nor clear it. Knows no
threshold; those are in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.model import Evidence, Finding
from exporter.rules import RULES, Answer, Facts, Rule
from exporter.symptoms import LinkMemory

# Seconds that nobody asked about are not seconds in which a condition stood.
_LONGEST_STEP_S = 5.0


@dataclass(slots=True)
class _Standing:
    """One condition of one device over time."""

    since_s: float  # first true second of the run that raised it, or may raise it
    last_true_s: float
    evidence: tuple[Evidence, ...]  # of the last true second
    active: bool = False


class Diagnosis:
    """The findings of one node. Not thread-safe: one owner."""

    def __init__(self, rules: tuple[Rule, ...] = RULES) -> None:
        self._rules = rules
        self._standing: dict[tuple[str, str | None], _Standing] = {}
        self._links = LinkMemory()
        self._last_s: float | None = None

    def step(self, facts: Facts) -> tuple[Finding, ...]:
        """The findings that are active at facts.t_s: node findings and GPUs in the order of rules and inventory."""
        self._links.remember(facts.series, facts.inventory.compute_ports(), facts.t_s)
        broken = self._last_s is None or not 0 < facts.t_s - self._last_s <= _LONGEST_STEP_S
        self._last_s = facts.t_s
        gpu_ids = [gpu.id for gpu in facts.inventory.of_kind("gpu")]
        findings = []
        here: set[tuple[str, str | None]] = set()
        for turn, rule in enumerate(self._rules, round(facts.t_s)):
            if broken or turn % rule.every_s == 0:
                for gpu_id, answer in self._ask(rule, facts):
                    self._keep_time(rule, gpu_id, answer, facts.t_s, broken=broken)
            for key in ((rule.finding, gpu_id) for gpu_id in (gpu_ids if rule.node is None else [None])):
                here.add(key)
                standing = self._standing.get(key)
                if standing is not None and standing.active:
                    findings.append(Finding(*key, standing.since_s, standing.evidence, rule.advice))
        self._standing = {key: s for key, s in self._standing.items() if key in here}  # a GPU that left takes its own along
        return tuple(findings)

    def _ask(self, rule: Rule, facts: Facts) -> Iterator[tuple[str | None, Answer]]:
        if rule.node is not None:
            yield None, rule.node(facts, self._links)
        if rule.gpu is not None:
            for gpu in facts.inventory.of_kind("gpu"):
                yield gpu.id, rule.gpu(facts, gpu.id)

    def _keep_time(self, rule: Rule, gpu_id: str | None, answer: Answer, t_s: float, *, broken: bool) -> None:
        """Take an answer into the standing of its condition; one that says nothing any more goes."""
        key = (rule.finding, gpu_id)
        standing = self._standing.get(key)
        if answer is None:
            if standing is not None and (not standing.active or t_s - standing.last_true_s >= rule.clear_s):
                del self._standing[key]
            return
        if standing is None or (broken and not standing.active):
            standing = self._standing[key] = _Standing(t_s, t_s, answer)
        standing.last_true_s, standing.evidence = t_s, answer
        standing.active = standing.active or t_s - standing.since_s >= rule.hold_s
