"""Continuous batching as a cost model, pure: how far a batch has come after some seconds, and what happens next.

A decode step with ``b`` running responses and ``k`` tokens in their KV caches takes

    ``step_s = base_s + per_sequence_s × b + per_kv_token_s × k``

and gives every running response one token, so ``k`` grows by ``b`` a step and ``n`` steps from now take

    ``n × step_s + per_kv_token_s × b × n² / 2``

(``k`` counts as it is on average during a step). All running responses share one step counter: a response is
described by the counter's values at which it starts and ends, and no event per token is needed. Prefill runs first
in, first out before the next decode step and stops decoding meanwhile. What joins in the middle of a step does not
wait for its end, which a real engine would do: an error of at most one step an arrival.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds: per step, per running response and step, per KV token and step, per prefilled token."""

    base_s: float
    per_sequence_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_prefill_token_s: float = 0.0


@dataclass(slots=True, eq=False)
class Slot(Generic[T]):
    """One running response: ``context`` tokens were in its cache when it joined at step ``start``."""

    key: T
    context: int
    start: float
    end: float
    prefill_s: float
    """Its own prefill still to be done."""
    is_in: bool = True
    shared_start: float = 0.0


class Progress(NamedTuple):
    """What a response had when it left: tokens (a fraction while a step is under way), prefill not yet done."""

    num_steps: float
    prefill_left_s: float


@dataclass(slots=True)
class DecodeBatch(Generic[T]):
    """The running responses of one replica. Step counts are floats: a batch may be looked at between two steps."""

    cost: DecodeCost
    steps: float = 0.0
    shared_steps: float = 0.0
    """Of every step 1 / batch: what a response that ran all along had of them."""
    kv_tokens: float = 0.0
    """Tokens in the caches of running responses."""
    prefill_s: float = 0.0
    """Prefill still to be done before the next decode step."""
    held_up_s: float = 0.0
    """Time in which nothing is computed, from now on."""
    slots: dict[T, Slot[T]] = field(default_factory=dict)
    _ends: list[tuple[float, int, Slot[T]]] = field(default_factory=list)
    _prefilling: deque[Slot[T]] = field(default_factory=deque)
    _order: int = 0

    def join(self, key: T, context: int, num_new: int, num_prefill: int) -> None:
        """A response joins: ``context`` cached tokens, ``num_prefill`` of them to prefill, ``num_new`` to come."""
        assert key not in self.slots, "joined twice"
        prefill_s = num_prefill * self.cost.per_prefill_token_s
        slot = Slot(key, context, self.steps, self.steps + num_new, prefill_s, shared_start=self.shared_steps)
        self.slots[key] = slot
        self.kv_tokens += context
        if prefill_s > 0.0:
            self.prefill_s += prefill_s
            self._prefilling.append(slot)
        self._order += 1
        heapq.heappush(self._ends, (slot.end, self._order, slot))

    def leave(self, key: T) -> Progress:
        """A response leaves, finished or not; nobody waits for the rest of its prefill."""
        slot = self.slots.pop(key)
        slot.is_in = False
        progress = Progress(self.steps - slot.start, slot.prefill_s)
        if self.slots:
            self.kv_tokens -= slot.context + progress.num_steps
            self.prefill_s -= slot.prefill_s
            slot.prefill_s = 0.0
        else:
            # Counting starts anew, so that rounding errors never add up over a whole run.
            self.steps = self.shared_steps = self.kv_tokens = self.prefill_s = self.held_up_s = 0.0
            self._ends.clear()
            self._prefilling.clear()
        return progress

    def share_of(self, key: T) -> float:
        """Its share of the steps since it joined, each divided among the responses that ran in it."""
        return self.shared_steps - self.slots[key].shared_start

    def youngest(self) -> T:
        """The response that joined last (the one to preempt)."""
        return next(reversed(self.slots))

    def advance(self, elapsed_s: float) -> None:
        """Let time pass."""
        if self.held_up_s:
            used = min(elapsed_s, self.held_up_s)
            self.held_up_s -= used
            elapsed_s -= used
        if self._prefilling:
            elapsed_s = self._prefill(elapsed_s)
        batch = len(self.slots)
        if batch and elapsed_s > 0.0:
            step_s, growth = self.step_s(), self.cost.per_kv_token_s * batch
            # The inverse of the time for n steps, in the form that stays exact for small growth.
            num_steps = 2 * elapsed_s / (step_s + math.sqrt(step_s * step_s + 2 * growth * elapsed_s))
            self.steps += num_steps
            self.shared_steps += num_steps / batch
            self.kv_tokens += batch * num_steps

    def finished(self, tolerance: float) -> list[T]:
        """Responses that have got their last token (within ``tolerance`` steps), oldest end first.

        Each is reported once and stays until it leaves.
        """
        done = []
        ends, limit = self._ends, self.steps + tolerance
        while ends and ends[0][0] <= limit:
            slot = heapq.heappop(ends)[2]
            if slot.is_in:
                done.append(slot.key)
        return done

    def seconds_to_next_end(self, max_kv_tokens: float | None = None) -> float | None:
        """Time until the next response ends or the caches hold so many tokens; None if nothing runs."""
        ends = self._ends
        while ends and not ends[0][2].is_in:
            heapq.heappop(ends)
        if not ends:
            return None
        num_steps, batch = ends[0][0] - self.steps, len(self.slots)
        if max_kv_tokens is not None:
            num_steps = min(num_steps, (max_kv_tokens - self.kv_tokens) / batch)
        if num_steps <= 0.0:
            return self.held_up_s + self.prefill_s
        growth = self.cost.per_kv_token_s * batch
        return self.held_up_s + self.prefill_s + num_steps * (self.step_s() + growth * num_steps / 2)

    def step_s(self) -> float:
        """Duration of a step that began right now and did not grow."""
        cost = self.cost
        return cost.base_s + cost.per_sequence_s * len(self.slots) + cost.per_kv_token_s * self.kv_tokens

    def _prefill(self, elapsed_s: float) -> float:
        """Work off the prefill queue; returns the seconds left for decoding."""
        waiting = self._prefilling
        while waiting and elapsed_s > 0.0:
            slot = waiting[0]
            used = min(elapsed_s, slot.prefill_s)
            slot.prefill_s -= used
            self.prefill_s -= used
            elapsed_s -= used
            if slot.prefill_s > 0.0:
                return 0.0
            waiting.popleft()
        if not waiting:
            self.prefill_s = 0.0
        return elapsed_s
