"""Tokens of simulated responses without storing them: a position range of a response of known length.

Two ranges concatenate only if the second goes on where the first ended, so a lost, doubled or reordered token is
an assertion error, and a response of 32,768 tokens costs as much memory as one of eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

Pause = tuple[int, float]
"""After so many tokens a response waits so many seconds for a tool."""


# Nobody changes them, but frozen classes take three times as long to make, and simulations make many.
@dataclass(slots=True)
class SimTokens(Sequence[int]):
    """Positions ``start`` to ``stop`` of a response that would have ``wanted`` tokens without any budget.

    A token's value is its position. What the response still has to go through travels with its tokens: all its
    ``pauses``, and when (virtual seconds) the tool answers that it was waiting for at ``stop``.
    """

    wanted: int
    start: int
    stop: int
    pauses: tuple[Pause, ...] = ()
    ready_at: float = 0.0

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        positions = range(self.start, self.stop)[index]
        if isinstance(positions, int):
            return positions
        assert positions.step == 1, "simulated tokens come in order"
        return SimTokens(self.wanted, positions.start, positions.stop, self.pauses)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __add__(self, other: Any) -> SimTokens:
        if type(other) is not SimTokens:
            assert not len(other), "only simulated tokens follow simulated ones"
            return self
        assert other.wanted == self.wanted, "tokens of two responses were mixed"
        assert other.start == self.stop, f"token {other.start} follows token {self.stop - 1}: lost or doubled"
        return SimTokens(self.wanted, self.start, other.stop, self.pauses, other.ready_at)

    def __radd__(self, other: Any) -> SimTokens:
        """After nothing, or after the plain tokens that a checkpoint kept."""
        assert list(other) == list(range(self.start)), "the first tokens of a response are missing"
        return SimTokens(self.wanted, 0, self.stop, self.pauses, self.ready_at) if self.start else self


@dataclass(slots=True)
class SimLogProbs(Sequence[float]):
    """``num`` equal log-probs."""

    num: int

    def __len__(self) -> int:
        return self.num

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        positions = range(self.num)[index]
        return -1.0 if isinstance(positions, int) else [-1.0] * len(positions)

    def __add__(self, other: Any) -> SimLogProbs:
        return SimLogProbs(self.num + len(other))

    def __radd__(self, other: Any) -> SimLogProbs:
        return SimLogProbs(self.num + len(other))
