"""Faults as data: which call of which port meets what, and what happens to whole processes when.

A plan is a tuple of faults. ``where`` names port calls (``hybrid-0.wake_up``, ``*.abort``, ``trainer.train``) of
which the ``nth`` meets the fault, counted over all sessions of a case; or a process (``standalone-1``, ``trainer``,
``run``) to which it happens ``seconds`` after its ``nth`` session began. Every fault happens once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase


class FaultKind(StrEnum):
    DELAY = "delay"
    """The call arrives ``seconds`` late, and those after it not before it."""
    LATE = "late"
    """It takes effect; the answer comes ``seconds`` later."""
    ERROR = "error"
    """It fails without an effect."""
    LOST = "lost"
    """It takes effect, but what comes back is an error."""
    OOM = "oom"
    """A wake-up takes its memory and then fails."""
    REFUSE = "refuse"
    """A replica that serves refuses a request."""
    HANG = "hang"
    """No effect and no answer; later calls go on."""
    DIE = "die"
    """The process dies ``seconds`` after the call arrived, or ``seconds`` after its session began."""
    DIE_AFTER = "die_after"
    """The call takes effect and the process dies before it answers."""
    FREEZE = "freeze"
    """The process stops for ``seconds`` (for good: infinity), keeps its memory, then does what it was asked."""
    CRASH = "crash"
    """``run`` only: everything dies at once, nothing can be saved."""
    STOP = "stop"
    """``run`` only: Ctrl-C."""
    CANCEL = "cancel"
    """``run`` only: Ctrl-C for the second time."""


PROCESS_KINDS = frozenset({FaultKind.DIE, FaultKind.FREEZE, FaultKind.CRASH, FaultKind.STOP, FaultKind.CANCEL})
"""What can happen to a process at a moment, whatever it is doing."""


_OF_THE_RUN = frozenset({FaultKind.CRASH, FaultKind.STOP, FaultKind.CANCEL})


def can_happen(where: str, kind: FaultKind) -> bool:
    """Some things only happen to calls, and some only to the run as a whole."""
    if "." in where:
        return kind not in _OF_THE_RUN
    return kind in (_OF_THE_RUN if where == "run" else PROCESS_KINDS - _OF_THE_RUN)


@dataclass(frozen=True, slots=True)
class Fault:
    where: str
    kind: FaultKind
    nth: int = 1
    seconds: float = 0.0
    frozen_s: float = float("inf")
    """Of a process that freezes at a moment: for how long."""

    def __post_init__(self) -> None:
        assert self.nth >= 1 and self.seconds >= 0.0
        assert can_happen(self.where, self.kind), f"{self.where} cannot {self.kind}"

    @property
    def is_timed(self) -> bool:
        return "." not in self.where

    def __str__(self) -> str:
        if self.is_timed:
            lasting = f" for {self.frozen_s:g} s" if self.kind is FaultKind.FREEZE else ""
            return f"{self.where}: {self.kind}{lasting} at {self.seconds:g} s of session {self.nth}"
        seconds = f" {self.seconds:g} s" if self.seconds else ""
        return f"{self.where}, call {self.nth}: {self.kind}{seconds}"


FaultPlan = tuple[Fault, ...]


@dataclass(slots=True)
class FaultSchedule:
    """A plan while it is carried out. ``fired``: what happened so far, with the names of the calls."""

    plan: FaultPlan
    fired: list[tuple[str, Fault]] = field(default_factory=list)
    is_over: bool = False
    """Nothing more happens."""
    on_call: Callable[[str], None] = lambda call: None
    _counts: dict[int, int] = field(default_factory=dict)
    _matching: dict[str, list[int]] = field(default_factory=dict)

    def take(self, call: str) -> Fault | None:
        """A port call arrives: the fault it meets, if any."""
        self.on_call(call)
        if self.is_over:
            return None
        matching = self._matching.get(call)
        if matching is None:
            matching = self._matching[call] = [
                i for i, fault in enumerate(self.plan) if not fault.is_timed and fnmatchcase(call, fault.where)
            ]
        met: Fault | None = None
        for index in matching:
            count = self._counts[index] = self._counts.get(index, 0) + 1
            if met is None and count == self.plan[index].nth:
                met = self.plan[index]
                self.fired.append((call, met))
        return met

    def timed(self, session: int) -> Sequence[Fault]:
        """What happens to processes in a session (from 1)."""
        return [] if self.is_over else [f for f in self.plan if f.is_timed and f.nth == session]

    def happened(self, fault: Fault) -> None:
        """A timed one did."""
        self.fired.append((fault.where, fault))
