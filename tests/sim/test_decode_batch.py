"""The decode batch in closed form against a simulation that hands out one token after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.sim.decoding import DecodeBatch, DecodeCost

PROFILE = settings(max_examples=150, deadline=None, derandomize=True)


@dataclass
class SlowResponse:
    context: int
    wanted: int
    tokens: float = 0.0
    prefill_s: float = 0.0


@dataclass
class SlowBatch:
    """Every response keeps its own count; at most one token each between two looks at the clock."""

    cost: DecodeCost
    running: dict[int, SlowResponse] = field(default_factory=dict)

    def step_s(self) -> float:
        cost, batch = self.cost, len(self.running)
        cached = sum(r.context + r.tokens for r in self.running.values())
        return cost.base_s + cost.per_sequence_s * batch + cost.per_kv_token_s * cached

    def seconds(self, step: float) -> float:
        """A share of a step during which the cached tokens grow evenly."""
        return step * (self.step_s() + self.cost.per_kv_token_s * len(self.running) * step / 2)

    def run_until(self, deadline_s: float, now: float) -> tuple[float, list[int]]:
        """Until a response has all its tokens, or the deadline; returns the time and who is finished."""
        while self.running:
            for response in self.running.values():
                used = min(response.prefill_s, deadline_s - now)
                response.prefill_s -= used
                now += used
            if now >= deadline_s:
                return deadline_s, []
            done = [key for key, r in self.running.items() if r.wanted - r.tokens <= 1e-9]
            if done:
                return now, done
            step = min(1.0, min(r.wanted - r.tokens for r in self.running.values()))
            if now + self.seconds(step) > deadline_s:
                low, high = 0.0, step
                for _ in range(80):
                    middle = (low + high) / 2
                    low, high = (middle, high) if now + self.seconds(middle) < deadline_s else (low, middle)
                self._give(low)
                return deadline_s, []
            now += self.seconds(step)
            self._give(step)
        return deadline_s, []

    def _give(self, tokens: float) -> None:
        for response in self.running.values():
            response.tokens += tokens


COSTS = st.builds(
    DecodeCost,
    base_s=st.floats(1e-4, 0.1),
    per_sequence_s=st.sampled_from([0.0, 1e-5, 0.01]),
    per_kv_token_s=st.sampled_from([0.0, 1e-8, 1e-5, 1e-3]),
    per_prefill_token_s=st.sampled_from([0.0, 1e-5, 1e-3]),
)
ARRIVALS = st.tuples(
    st.floats(0.0, 0.5),  # seconds after the previous event
    st.integers(0, 300),  # context
    st.integers(1, 40),  # tokens to come
    st.booleans(),  # prefill its context
    st.one_of(st.none(), st.floats(0.0, 0.6)),  # leaves early, seconds after it joined
)


@PROFILE
@given(COSTS, st.lists(ARRIVALS, min_size=1, max_size=12))
def test_ends_and_tokens_are_those_of_a_token_by_token_simulation(
    cost: DecodeCost, arrivals: list[tuple[float, int, int, bool, float | None]]
) -> None:
    plans: list[tuple[float, int, int]] = []  # time, 0 for a join or 1 for a leave, key
    now = 0.0
    for key, (gap_s, _, _, _, leave_s) in enumerate(arrivals):
        now += gap_s
        plans.append((now, 0, key))
        if leave_s is not None:
            plans.append((now + leave_s, 1, key))
    plans.sort()
    assert run_fast(cost, arrivals, plans) == pytest.approx(run_slow(cost, arrivals, plans), rel=1e-6, abs=1e-6)


Trace = dict[str, float]
"""When each response was gone, finished or not, and how many tokens it had by then."""


def run_slow(cost: DecodeCost, arrivals: list, plans: list[tuple[float, int, int]]) -> Trace:  # type: ignore[type-arg]
    batch, now, trace = SlowBatch(cost), 0.0, {}
    for at, kind, key in [*plans, (math.inf, 2, -1)]:
        while batch.running:
            now, done = batch.run_until(at, now)
            if not done:
                break
            for ended in done:
                trace[f"gone {ended}"], trace[f"tokens {ended}"] = now, batch.running.pop(ended).tokens
        now = at
        if kind == 0:
            _, context, wanted, prefill, _ = arrivals[key]
            seconds = context * cost.per_prefill_token_s if prefill else 0.0
            batch.running[key] = SlowResponse(context, wanted, prefill_s=seconds)
        elif kind == 1 and key in batch.running:
            trace[f"gone {key}"], trace[f"tokens {key}"] = now, batch.running.pop(key).tokens
    return trace


def run_fast(cost: DecodeCost, arrivals: list, plans: list[tuple[float, int, int]]) -> Trace:  # type: ignore[type-arg]
    batch: DecodeBatch[int] = DecodeBatch(cost)
    now, trace = 0.0, {}
    for at, kind, key in [*plans, (math.inf, 2, -1)]:
        while (seconds := batch.seconds_to_next_end()) is not None and now + seconds <= at:
            now += seconds
            batch.advance(seconds)
            done = batch.finished(1e-7)
            assert done, "the time to the next end was wrong"
            for ended in done:
                trace[f"gone {ended}"], trace[f"tokens {ended}"] = now, batch.leave(ended).num_steps
        if kind == 2:
            break
        batch.advance(at - now)
        now = at
        if kind == 0:
            _, context, wanted, prefill, _ = arrivals[key]
            batch.join(key, context, wanted, context if prefill else 0)
        elif key in batch.slots:
            trace[f"gone {key}"], trace[f"tokens {key}"] = now, batch.leave(key).num_steps
        expected = sum(s.context + batch.steps - s.start for s in batch.slots.values())
        assert batch.kv_tokens == pytest.approx(expected, abs=1e-6)
    assert not batch.slots and batch.kv_tokens == batch.prefill_s == 0.0
    return trace


@PROFILE
@given(
    COSTS,
    st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 50)), min_size=1, max_size=16),
)
def test_a_real_engines_steps_differ_by_little(cost: DecodeCost, responses: list[tuple[int, int]]) -> None:
    """A step that reads the cache as it is when the step begins: half a token a response less than on average."""
    batch: DecodeBatch[int] = DecodeBatch(cost)
    for key, (context, wanted) in enumerate(responses):
        batch.join(key, context, wanted, 0)
    ours = 0.0
    while (seconds := batch.seconds_to_next_end()) is not None:
        ours += seconds
        batch.advance(seconds)
        for key in batch.finished(1e-7):
            batch.leave(key)
    engine = allowed = 0.0
    for step in range(max(wanted for _, wanted in responses)):
        running = [context + step for context, wanted in responses if wanted > step]
        engine += cost.base_s + cost.per_sequence_s * len(running) + cost.per_kv_token_s * sum(running)
        allowed += cost.per_kv_token_s * len(running) / 2
    assert ours == pytest.approx(engine + allowed, rel=1e-9)


def test_time_for_n_steps_by_hand() -> None:
    """Two responses with 100 and 200 cached tokens: 10 + 2·3 + 0.1·300 = 46 ms a step, growing by 0.2 ms a step."""
    batch: DecodeBatch[str] = DecodeBatch(DecodeCost(0.010, 0.003, 0.0001))
    batch.join("a", 100, 10, 0)
    batch.join("b", 200, 20, 0)
    assert batch.seconds_to_next_end() == pytest.approx(10 * 0.046 + 0.0002 * 10**2 / 2)
    batch.advance(10 * 0.046 + 0.0002 * 10**2 / 2)
    assert batch.finished(1e-9) == ["a"]
    assert batch.leave("a").num_steps == pytest.approx(10)
    # Alone: 10 + 3 + 0.1·210 = 34 ms, growing by 0.1 ms a step.
    assert batch.seconds_to_next_end() == pytest.approx(10 * 0.034 + 0.0001 * 10**2 / 2)
    assert batch.seconds_to_next_end(215) == pytest.approx(5 * 0.034 + 0.0001 * 5**2 / 2)


def test_nobody_pays_for_the_prefill_of_a_response_that_left() -> None:
    batch: DecodeBatch[str] = DecodeBatch(DecodeCost(1.0, per_prefill_token_s=0.1))
    batch.join("first", 20, 3, 20)
    batch.join("second", 10, 3, 10)
    batch.advance(1.5)
    assert batch.seconds_to_next_end() == pytest.approx(0.5 + 1.0 + 3.0)
    assert batch.leave("first") == (0.0, pytest.approx(0.5))
    assert batch.seconds_to_next_end() == pytest.approx(1.0 + 3.0)
    batch.leave("second")
    batch.join("third", 10, 3, 0)
    assert batch.seconds_to_next_end() == pytest.approx(3.0), "an empty batch has nothing to prefill"


def test_counting_starts_anew_whenever_the_batch_is_empty() -> None:
    batch: DecodeBatch[int] = DecodeBatch(DecodeCost(0.01))
    for key in range(3):
        batch.join(key, 5, 1_000_000_000, 0)
        batch.advance(1e7)
        assert batch.finished(1e-6) == [key]
        batch.leave(key)
        assert batch.steps == 0.0
