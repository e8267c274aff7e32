"""Tokens of simulated responses without storing them: a position range of a response of known length.

Two ranges concatenate only if the second goes on where the first ended, so a lost, doubled or reordered token is
an assertion error, and a response of 32,768 tokens costs as much memory as one of eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class SimTokens(Sequence[int]):
    """Positions ``start`` to ``stop`` of a response that would have ``wanted`` tokens without any budget.

    A token's value is its position.
    """

    wanted: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return range(self.start, self.stop)[index]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __add__(self, other: Any) -> SimTokens:
        if not len(other):
            return self
        assert isinstance(other, SimTokens) and other.wanted == self.wanted, "tokens of two responses were mixed"
        assert other.start == self.stop, f"tokens {other.start}… follow token {self.stop - 1}"
        return SimTokens(self.wanted, self.start, other.stop)

    def __radd__(self, other: Any) -> SimTokens:
        assert not len(other) and self.start == 0, "the first tokens of a response are missing"
        return self


@dataclass(frozen=True, slots=True)
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
