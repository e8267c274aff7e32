"""Finds a smaller case that still fails in the same way: fewer faults, then smaller sizes, until nothing helps.

Faults are thrown out in halves, quarters and so on (delta debugging); every size is tried at its simplest value,
then at half, then one less. A case counts as failing in the same way if its failure reads the same but for numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from swingshift.sim.fault_plan import FaultPlan
from swingshift.sim.soak_run import SoakCase
from swingshift.sim.soak_world import SoakWorld

SMALLEST: dict[str, Any] = {
    "num_standalone": 1,
    "num_hybrid": 1,
    "devices_per_replica": 1,
    "num_prompts": 1,
    "ppo_mini_batch_size": 1,
    "require_batches": 1,
    "num_collections": 1,
    "concurrent_samples_per_replica": 1,
    "num_responses": 1,
    "median_length": 1,
}
"""Of numbers that only make a world smaller; everything else goes back to its default."""
_KEPT = frozenset({"mode", "seed"})
MOST_RUNS = 2000

Failure = Callable[[SoakCase], str]
"""Runs a case; returns how it failed, or nothing."""


def signature(failure: str) -> str:
    """What a failure says, whoever and however many it names."""
    first = failure.partition("\n")[0]
    return re.sub(r"[0-9][0-9.,]*|\[.*?\]", "#", first.partition(":")[2])[:60]


def shrink(case: SoakCase, run: Failure, most_runs: int = MOST_RUNS) -> tuple[SoakCase, str]:
    """The smallest case found, and how it fails. ``case`` itself must fail."""
    search = _Search(run, signature(run(case)), most_runs)
    while True:
        before = case
        case = _fewer_faults(case, search)
        case = _smaller(case, search)
        if case == before or search.is_over:
            return case, run(case)


class _Search:
    def __init__(self, run: Failure, wanted: str, most_runs: int) -> None:
        self._run = run
        self._wanted = wanted
        self._left = most_runs
        self._known: dict[SoakCase, bool] = {}

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def fails(self, case: SoakCase) -> bool:
        """In the wanted way?"""
        known = self._known.get(case)
        if known is None:
            if self.is_over:
                return False
            self._left -= 1
            failure = self._run(case)
            known = self._known[case] = bool(failure) and signature(failure) == self._wanted
        return known


def _fewer_faults(case: SoakCase, search: _Search) -> SoakCase:
    size = max(1, len(case.plan) // 2)
    while size >= 1:
        start = 0
        while start < len(case.plan):
            fewer = replace(case, plan=case.plan[:start] + case.plan[start + size :])
            if search.fails(fewer):
                case = fewer
            else:
                start += size
        size //= 2
    for index, fault in enumerate(case.plan):
        for nth in range(1, fault.nth):
            earlier = replace(case, plan=_with(case.plan, index, nth))
            if search.fails(earlier):
                case = earlier
                break
    return case


def _with(plan: FaultPlan, index: int, nth: int) -> FaultPlan:
    return (*plan[:index], replace(plan[index], nth=nth), *plan[index + 1 :])


def _smaller(case: SoakCase, search: _Search) -> SoakCase:
    for field in fields(SoakWorld):
        if field.name in _KEPT:
            continue
        for value in _simpler(field.name, getattr(case.world, field.name)):
            changes: dict[str, Any] = {field.name: value}
            tried = replace(case, world=replace(case.world, **changes))
            if search.fails(tried):
                case = tried
                break
    return case


_DEFAULT = SoakWorld()


def _simpler(name: str, value: Any) -> Iterator[Any]:
    """Simplest first."""
    if name not in SMALLEST:
        if value != getattr(_DEFAULT, name):
            yield getattr(_DEFAULT, name)
        return
    smallest = SMALLEST[name]
    for candidate in dict.fromkeys((smallest, (smallest + value) // 2, value - 1)):
        if smallest <= candidate < value:
            yield candidate
