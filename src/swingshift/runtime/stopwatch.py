"""Adds up seconds under names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Stopwatch:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, key: str) -> Iterator[None]:
        started = self._now()
        try:
            yield
        finally:
            self.add({key: self._now() - started})

    def add(self, timings_s: Mapping[str, float]) -> None:
        for key, seconds in timings_s.items():
            self.seconds[key] = self.seconds.get(key, 0.0) + seconds
