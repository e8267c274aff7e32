"""Continuous batching as a cost model, pure: how far a batch has come after some seconds, and what happens next.

A decode step with ``b`` running responses and ``k`` tokens in their KV caches takes

    ``step_s = base_s + per_sequence_s × b + per_kv_token_s × k``

and gives every running response one token, so ``k`` grows by ``b`` a step and ``n`` steps from now take

    ``n × step_s + per_kv_token_s × b × n² / 2``.

All running responses share one step counter: a response is described by the counter's values at which it starts
and ends, and no event per token is needed. Prefill runs before the next decode step and stops decoding meanwhile.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds: per step, per running response and step, per KV token and step, per prefilled token."""

    base_s: float
    per_sequence_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_prefill_token_s: float = 0.0


@dataclass(slots=True)
class Slot(Generic[T]):
    """One running response: ``context`` tokens were in its cache when it joined at ``start``."""

    key: T
    context: int
    start: float
    end: float
    order: int


@dataclass(slots=True)
class DecodeBatch(Generic[T]):
    """The running responses of one replica. Step counts are floats: a batch may be looked at between two steps."""

    cost: DecodeCost
    steps: float = 0.0
    kv_tokens: float = 0.0
    """Tokens in the caches of running responses."""
    prefill_s: float = 0.0
    """Prefill still to be done before the next decode step."""
    slots: dict[T, Slot[T]] = field(default_factory=dict)
    _ends: list[tuple[float, int, T]] = field(default_factory=list)
    _order: int = 0

    def join(self, key: T, context: int, num_new: int, num_prefill: int) -> None:
        """A response joins: ``context`` cached tokens, ``num_prefill`` of them to prefill, ``num_new`` to come."""
        self._order += 1
        slot = Slot(key, context, self.steps, self.steps + num_new, self._order)
        self.slots[key] = slot
        self.kv_tokens += context
        self.prefill_s += num_prefill * self.cost.per_prefill_token_s
        heapq.heappush(self._ends, (slot.end, slot.order, key))

    def leave(self, key: T) -> float:
        """A response leaves; returns how many tokens it got, a fraction while a step is under way."""
        slot = self.slots.pop(key)
        done = self.steps - slot.start
        self.kv_tokens -= slot.context + done
        if not self.slots:
            self.kv_tokens = 0.0
            self._ends.clear()
        return done

    def youngest(self) -> T:
        """The response that joined last (the one to preempt)."""
        return next(reversed(self.slots))

    def advance(self, elapsed_s: float) -> None:
        """Let time pass."""
        used = min(elapsed_s, self.prefill_s)
        self.prefill_s -= used
        elapsed_s -= used
        if self.slots and elapsed_s > 0.0:
            num_steps = self._steps_in(elapsed_s)
            self.steps += num_steps
            self.kv_tokens += len(self.slots) * num_steps

    def finished(self, tolerance: float) -> list[T]:
        """Responses that have got their last token, oldest end first. They stay until they leave."""
        done = []
        while (first := self._first_end()) is not None and first - self.steps <= tolerance:
            done.append(heapq.heappop(self._ends)[2])
        return done

    def seconds_to_next_end(self) -> float | None:
        """Time until the next response ends, if nothing joins or leaves before."""
        first = self._first_end()
        return None if first is None else self.prefill_s + self.seconds_for(max(0.0, first - self.steps))

    def seconds_to_kv_tokens(self, limit: float) -> float:
        """Time until the caches hold ``limit`` tokens, if nothing joins or leaves before."""
        if not self.slots:
            return math.inf
        return self.prefill_s + self.seconds_for(max(0.0, (limit - self.kv_tokens) / len(self.slots)))

    def step_s(self) -> float:
        """Duration of a step right now."""
        cost = self.cost
        return cost.base_s + cost.per_sequence_s * len(self.slots) + cost.per_kv_token_s * self.kv_tokens

    def seconds_for(self, num_steps: float) -> float:
        growth = self.cost.per_kv_token_s * len(self.slots)
        return num_steps * self.step_s() + growth * num_steps * num_steps / 2

    def _steps_in(self, elapsed_s: float) -> float:
        """The inverse of ``seconds_for``, in the form that stays exact for small growth."""
        step_s, growth = self.step_s(), self.cost.per_kv_token_s * len(self.slots)
        return 2 * elapsed_s / (step_s + math.sqrt(step_s * step_s + 2 * growth * elapsed_s))

    def _first_end(self) -> float | None:
        """The step at which the next response ends; entries of responses that left are dropped."""
        while self._ends:
            end, order, key = self._ends[0]
            slot = self.slots.get(key)
            if slot is not None and slot.order == order:
                return end
            heapq.heappop(self._ends)
        return None
