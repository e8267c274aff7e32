"""Device-seconds that a scenario's run cannot do without, whatever the schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swingshift.sim.bound import Work
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_costs import replica_cost, trainer_cost
from swingshift.sim.scenario_world import lengths_of, num_groups, to_world


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of a whole workload, or of what a run trained on."""

    groups: int
    responses: int
    prompt: int
    """Prompt tokens, once per group."""
    response: int
    cached: float
    """Tokens in KV caches, summed over every decode step of every response."""


class ConsumedTokens:
    """Adds up, cycle by cycle, what a run trained on. What was evicted or failed is work that it could do without."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(_CONSUMED, 0.0)

    def add(self, row: Mapping[str, float]) -> None:
        for name in _CONSUMED:
            self._sums[name] += row[name]

    def counts(self, prompt_length: int) -> TokenCounts:
        groups, responses, prompt, response, squares = self._sums.values()
        cached = prompt_length * response + squares / 2
        return TokenCounts(int(groups), int(responses), int(prompt), int(response), cached)


_CONSUMED = (
    "fully_async/trainer/step_consumed_samples",
    "fully_async/trainer/step_consumed_trajectories",
    "perf/num_prompt_tokens",
    "perf/tokens",
    "response_length/sum_squares",
)


def count_tokens(scenario: Scenario) -> TokenCounts:
    """Of all groups of the workload: what a run trains on that evicts none."""
    draw, n, prompt = lengths_of(scenario), scenario.generation.n, scenario.generation.prompt_length
    longest, groups = scenario.generation.response_length, num_groups(scenario)
    num_tokens, cached = 0, 0.0
    for group_id in range(groups):
        for index in range(n):
            length = min(longest, draw(str(group_id), index))
            num_tokens += length
            cached += length * (prompt + length / 2)
    return TokenCounts(groups, groups * n, groups * prompt, num_tokens, cached)


def work_of(scenario: Scenario, tokens: TokenCounts | None = None, *, lending: bool = True) -> Work:
    """Training and rollout at its best batch, the latter in seconds of standalone devices.

    A response token costs its own part of the decode steps it is in (its sequence's and its cached tokens' cost)
    and of what a step costs whatever the batch at least the larger of one slot's part and its part of the KV
    capacity. Slots are the engine's ``max_num_seqs``, or fewer where the run never has so many responses in flight.
    Without lending an engine has ``concurrent_samples_per_replica`` groups at a time on average, and the best a
    run can do is to spread them evenly; when lent devices leave, the others take over what they had, so with
    lending that limit does not hold. Prefill counts once per group. Thus no run can beat the bound.
    """
    tokens = tokens or count_tokens(scenario)
    cluster, standalone, hybrid = scenario.cluster, replica_cost(scenario), replica_cost(scenario, hybrid=True)
    slots = _slots(scenario, lending)
    num_steps = tokens.response / slots
    capacities = [
        cost.kv_capacity_tokens or math.inf for cost in ((standalone, hybrid) if lending else (standalone,))
    ]
    num_steps = max(num_steps, tokens.cached / max(capacities))
    decode_s = (
        num_steps * standalone.step_base_s
        + tokens.response * standalone.step_per_sequence_s
        + tokens.cached * standalone.step_per_kv_token_s
    )
    rollout_s = decode_s + tokens.prompt * standalone.prefill_per_token_s
    return Work(_train_s(scenario, tokens) * cluster.trainer_devices, rollout_s * cluster.devices_per_replica)


def _slots(scenario: Scenario, lending: bool) -> int:
    numbers, n = to_world(scenario).numbers, scenario.generation.n
    groups = numbers.max_required_samples
    if not lending:
        groups = min(groups, numbers.concurrent_samples_per_replica)
    return min(scenario.generation.max_num_seqs, groups * n)


def _train_s(scenario: Scenario, tokens: TokenCounts) -> float:
    """Seconds of the trainer as a whole."""
    cost, numbers = trainer_cost(scenario), to_world(scenario).numbers
    num_tokens = tokens.response
    if cost.counts_prompts:
        num_tokens += tokens.responses * scenario.generation.prompt_length
    per_token_s = cost.per_token_s + cost.old_log_prob_per_token_s + cost.ref_per_token_s + cost.adv_per_token_s
    num_collections = math.ceil(tokens.groups / numbers.required_samples)
    return num_collections * cost.base_s + num_tokens * per_token_s + tokens.groups * cost.per_group_s
