"""What the control plane tells whoever watches, besides cycle reports and device spans. Nobody has to listen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from swingshift.core.cost import mean_switch_cost_s
from swingshift.core.types import FinishReason, GenerationRequest, ReplicaId, TokenOutput, WeightVersion
from swingshift.schedule.base import DynamicScheduleContext


class Question(StrEnum):
    """What a policy is asked."""

    LEND = "lend"
    TAKE_BACK = "take_back"
    REBALANCE = "rebalance"


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer of a policy, why, and the numbers it was made from. Seconds of the run's clock."""

    time_s: float
    version: WeightVersion
    question: Question
    answer: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)


class Outcome(StrEnum):
    """How an attempt to generate ended."""

    FINISHED = "finished"
    """Every response it carried is finished."""
    ABORTED = "aborted"
    """Some came back with the tokens they had and go on elsewhere."""
    REFUSED = "refused"
    """The replica was going to sleep, died or was taken out: nothing came back."""
    FAILED = "failed"
    """The replica reported an error."""
    CANCELLED = "cancelled"
    """The run ended."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call to one replica on behalf of a group. Seconds of the run's clock."""

    request_id: str
    replica: ReplicaId
    start_s: float
    end_s: float
    outcome: Outcome
    num_responses: int
    num_tokens: int
    num_prefill_tokens: int


def attempt_of(
    request: GenerationRequest,
    replica: ReplicaId,
    start_s: float,
    end_s: float,
    outputs: Sequence[TokenOutput] | None,
    failure: Outcome,
) -> Attempt:
    """``failure`` says what happened where there are no outputs."""
    outcome = failure
    if outputs is not None:
        aborted = any(output.finish_reason is FinishReason.ABORT for output in outputs)
        outcome = Outcome.ABORTED if aborted else Outcome.FINISHED
    return Attempt(
        request.request_id,
        replica,
        start_s,
        end_s,
        outcome,
        request.num_responses,
        sum(len(output.token_ids) for output in outputs or ()),
        sum(output.num_prefill_tokens for output in outputs or ()),
    )


def decision_numbers(ctx: DynamicScheduleContext, learnt: Mapping[str, Any], **more: float) -> dict[str, float]:
    """What a policy saw: its context in a few numbers, and what it has learnt (the plain numbers of its state)."""
    numbers = {
        "backlog_samples": ctx.total_generated_samples - ctx.expected_samples,
        "step_required_samples": ctx.step_required_samples,
        "waited_s": sum(ctx.step_wait_times),
        "waited_samples": sum(ctx.step_wait_samples),
    }
    cost_s = mean_switch_cost_s(ctx.switch_costs_s)
    if cost_s is not None:
        numbers["switch_cost_s"] = cost_s
    plain = {name: value for name, value in learnt.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in {**numbers, **plain, **more}.items()}
