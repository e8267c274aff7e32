"""Which response sits in which slot: pure bookkeeping, first come first served, rows kept dense.

The decode step runs over rows 0 … n - 1 of the cache, so a freed row is taken by a joining response, or else
by the last running one, which moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from swingshift.core.types import FinishReason, GenerationRequest, TokenOutput, Tokens, WeightVersion


@dataclass(eq=False, slots=True)
class Response:
    """One response being generated. ``context`` is prompt plus prefix; ``tokens`` are the new ones."""

    job: Job
    context: Tokens
    budget: int
    stops: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_prefill_tokens: int = 0
    decode_steps: float = 0.0
    """Its share of the steps it was in (see TokenOutput), known at its end."""
    steps_at_join: float = 0.0
    version: WeightVersion = 0
    """Of the weights it runs on; they never change while it runs."""

    @property
    def position(self) -> int:
        """Where the next decode step writes: the index of the last token known."""
        return len(self.context) + len(self.tokens) - 1

    def append(self, token: int, log_prob: float) -> bool:
        """Take a new token; True if it was the last. A stop token exactly at the budget is a stop."""
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        if token in self.stops:
            self.finish_reason = FinishReason.STOP
        elif len(self.tokens) >= self.budget:
            self.finish_reason = FinishReason.LENGTH
        return self.finish_reason is not None

    def output(self) -> TokenOutput:
        assert self.finish_reason is not None
        return TokenOutput(
            token_ids=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            version_spans=((self.version, len(self.tokens)),) if self.tokens else (),
            finish_reason=self.finish_reason,
            num_prefill_tokens=self.num_prefill_tokens,
            decode_steps=self.decode_steps,
        )


@dataclass(eq=False, slots=True)
class Job:
    """One request and the future its caller waits on."""

    request: GenerationRequest
    future: Future[tuple[TokenOutput, ...]]
    responses: list[Response] = field(default_factory=list)
    num_open: int = 0

    @classmethod
    def build(cls, request: GenerationRequest, future: Future[tuple[TokenOutput, ...]]) -> Job:
        job = cls(request, future)
        stops = frozenset(request.sampling.stop_token_ids)
        for prefix, budget in zip(request.prefixes, request.budgets, strict=True):
            job.responses.append(Response(job, request.prompt_ids + prefix, budget, stops))
        job.num_open = len(job.responses)
        return job


@dataclass(frozen=True, slots=True)
class Plan:
    """What changes before the next step: moves (source row, target row) first, then joins."""

    moves: tuple[tuple[int, int], ...]
    joins: tuple[tuple[int, Response], ...]

    def __bool__(self) -> bool:
        return bool(self.moves or self.joins)


class Scheduler:
    """``held`` jobs arrived during a pause; ``waiting`` responses are next; ``rows`` are running."""

    def __init__(self) -> None:
        self.held: deque[Job] = deque()
        self.waiting: deque[Response] = deque()
        self.rows: list[Response | None] = []

    @property
    def running(self) -> list[Response]:
        return [r for r in self.rows if r is not None]

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + sum(len(job.responses) for job in tuple(self.held))

    @property
    def is_drained(self) -> bool:
        return not self.waiting and not self.running

    def add(self, job: Job) -> None:
        self.waiting.extend(job.responses)

    def release_held(self) -> None:
        while self.held:
            self.add(self.held.popleft())

    def jobs(self) -> list[Job]:
        """Every unfinished job once, oldest first."""
        responses = (*self.running, *self.waiting)
        return list(dict.fromkeys((*(r.job for r in responses), *self.held)))

    def leave(self, row: int) -> None:
        self.rows[row] = None

    def remove(self, gone: Callable[[Job], bool]) -> list[Job]:
        """Take out every response of the jobs that match; returns those jobs."""
        jobs = [job for job in self.jobs() if gone(job)]
        removed = set(map(id, jobs))
        self.held = deque(j for j in self.held if id(j) not in removed)
        self.waiting = deque(r for r in self.waiting if id(r.job) not in removed)
        self.rows = [r if r is not None and id(r.job) not in removed else None for r in self.rows]
        return jobs

    def plan(self, num_slots: int) -> Plan:
        """Fill free rows with waiting responses and close the gaps that remain; updates ``rows``."""
        holes = deque(row for row, r in enumerate(self.rows) if r is None)
        joins: list[tuple[int, Response]] = []
        while self.waiting and (holes or len(self.rows) < num_slots):
            response = self.waiting.popleft()
            if holes:
                row = holes.popleft()
                self.rows[row] = response
            else:
                row = len(self.rows)
                self.rows.append(response)
            joins.append((row, response))
        return Plan(moves=tuple(self._close(holes)), joins=tuple(joins))

    def _close(self, holes: deque[int]) -> Iterable[tuple[int, int]]:
        while holes:
            last = self.rows.pop()
            source = len(self.rows)
            if last is None:
                holes.pop()
                continue
            target = holes.popleft()
            self.rows[target] = last
            yield source, target
