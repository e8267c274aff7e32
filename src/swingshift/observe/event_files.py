"""What a run writes about itself between two metric rows: spans, decisions, levels and attempts.

Spans and decisions are complete. Levels (queue, in flight, budget) and attempts to generate come with every group;
they are thinned the longer a run gets, so that their files grow with the logarithm of its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from swingshift.observe.guard import Guard
from swingshift.observe.line_file import LineFile
from swingshift.observe.span_log import SpanLog
from swingshift.runtime.observations import Attempt, Decision
from swingshift.runtime.session import Session

SPANS_FILE = "timeline.jsonl"
DECISIONS_FILE = "decisions.jsonl"
LEVELS_FILE = "levels.jsonl"
ATTEMPTS_FILE = "attempts.jsonl"

LINES_BEFORE_THINNING = 10_000


class EventFiles:
    """All of a run folder. Errors of a file are warned about once and go no further."""

    def __init__(self, folder: Path) -> None:
        self.spans = SpanLog(folder / SPANS_FILE)
        self._decisions = DecisionLog(folder / DECISIONS_FILE)
        self._levels = LevelLog(folder / LEVELS_FILE)
        self._attempts = AttemptLog(folder / ATTEMPTS_FILE)

    def watch(self, session: Session) -> None:
        """Before it runs."""
        rollouter, now = session.rollouter, session.now

        def on_levels() -> None:
            if self._levels.is_due(time_s := now()):
                ledger = rollouter.ledger
                self._levels.write(time_s, ledger.num_queued, ledger.num_in_flight, rollouter.staleness_samples)

        rollouter.on_levels = on_levels
        session.client.observe(self._attempts.write, now)

    def decided(self, decisions: Iterable[Decision]) -> None:
        self._decisions.write(decisions)

    def flush(self) -> None:
        for file in (self.spans, self._decisions, self._levels, self._attempts):
            file.flush()

    def close(self) -> None:
        for file in (self.spans, self._decisions, self._levels, self._attempts):
            file.close()


class _Log:
    def __init__(self, path: Path, name: str) -> None:
        self._guard = Guard(name)
        self._file = LineFile(path, flush_each=False)

    def flush(self) -> None:
        with self._guard():
            self._file.flush()

    def close(self) -> None:
        with self._guard():
            self._file.close()


class DecisionLog(_Log):
    """``decisions.jsonl``: what a policy was asked, what it answered, why, and from which numbers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "decision log")

    def write(self, decisions: Iterable[Decision]) -> None:
        with self._guard():
            for d in decisions:
                self._file.write(
                    {
                        "time_s": round(d.time_s, 6),
                        "version": d.version,
                        "question": d.question.value,
                        "answer": d.answer,
                        "reason": d.reason,
                        **d.numbers,
                    }
                )


class LevelLog(_Log):
    """``levels.jsonl``: groups queued, in flight, and counted against the staleness budget, from ``time_s`` on.

    Every change at first. Each time ``LINES_BEFORE_THINNING`` lines were written, changes that follow each other
    more closely than twice the mean distance so far are left out from then on.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "level log")
        self._interval_s = 0.0
        self._next_s = float("-inf")
        self._first_s: float | None = None
        self._num_lines = 0

    def is_due(self, time_s: float) -> bool:
        return time_s >= self._next_s

    def write(self, time_s: float, queued: int, in_flight: int, staleness_samples: int) -> None:
        first_s = self._first_s = time_s if self._first_s is None else self._first_s
        with self._guard():
            self._file.write(
                {
                    "time_s": round(time_s, 6),
                    "queued": queued,
                    "in_flight": in_flight,
                    "staleness_samples": staleness_samples,
                }
            )
        self._num_lines += 1
        if self._num_lines % LINES_BEFORE_THINNING == 0:
            self._interval_s = 2 * max(self._interval_s, (time_s - first_s) / self._num_lines)
        self._next_s = time_s + self._interval_s


class AttemptLog(_Log):
    """``attempts.jsonl``: which replica worked on which group from when to when, and how it ended.

    All groups at first. Each time ``LINES_BEFORE_THINNING`` lines were written, only half as many groups are
    followed from then on (those whose number divides by ``every``); a group is followed on all its replicas.
    Validations are thinned likewise, by lines of their own: they leave training's groups as they are.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "attempt log")
        self._training, self._validation = _Thinning(), _Thinning()

    def write(self, attempt: Attempt) -> None:
        request = attempt.request_id
        if request.isdigit():
            thinning, number = self._training, int(request)
        else:  # Validations number their prompts from 0 each: equally many of each must go.
            thinning, number = self._validation, crc32(request.encode())
        if number % thinning.every:
            return
        with self._guard():
            self._file.write(
                {
                    "request": request,
                    "replica": attempt.replica,
                    "start_s": round(attempt.start_s, 6),
                    "end_s": round(attempt.end_s, 6),
                    "outcome": attempt.outcome.value,
                    "num_responses": attempt.num_responses,
                    "num_tokens": attempt.num_tokens,
                    "num_prefill_tokens": attempt.num_prefill_tokens,
                    "every": thinning.every,
                }
            )
        thinning.count_line()


@dataclass(slots=True)
class _Thinning:
    every: int = 1
    num_lines: int = 0

    def count_line(self) -> None:
        self.num_lines += 1
        if self.num_lines % LINES_BEFORE_THINNING == 0:
            self.every *= 2
