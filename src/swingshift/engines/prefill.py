"""Which contexts to prefill together when responses join: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swingshift.core.types import Tokens
from swingshift.engines.scheduler import Job, Response

MAX_PADDED_TOKENS = 8192
"""One prefill pass holds at most this many tokens, padding included (or one single context)."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """One context of one job and the rows that start from it. ``tokens`` leaves out the context's last one,
    which goes through the first decode step."""

    job: Job
    tokens: Tokens
    rows: tuple[int, ...]
    first: Response

    @property
    def length(self) -> int:
        return len(self.tokens)


def group_joins(joins: Iterable[tuple[int, Response]]) -> list[Prefill]:
    """One prefill per job and context, however many of the job's responses share it."""
    groups: dict[tuple[int, Tokens], list[tuple[int, Response]]] = {}
    for row, response in joins:
        groups.setdefault((id(response.job), response.context), []).append((row, response))
    return [
        Prefill(members[0][1].job, context[:-1], tuple(row for row, _ in members), members[0][1])
        for (_, context), members in groups.items()
    ]


def batch_prefills(prefills: Sequence[Prefill], max_tokens: int = MAX_PADDED_TOKENS) -> list[list[Prefill]]:
    """Split into passes of similar lengths whose padded size stays within ``max_tokens``."""
    passes: list[list[Prefill]] = []
    for prefill in sorted(prefills, key=lambda p: p.length):
        if passes and (len(passes[-1]) + 1) * prefill.length <= max_tokens:
            passes[-1].append(prefill)
        else:
            passes.append([prefill])
    return passes
