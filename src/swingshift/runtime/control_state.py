"""All control state of a run: read at one moment for a checkpoint, written back before a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swingshift.core.cost import SwitchCosts
from swingshift.core.metrics import CycleMetrics
from swingshift.runtime.checkpoint import group_from_json, group_to_json, pending_from_json, pending_to_json
from swingshift.runtime.ports import PromptSource
from swingshift.runtime.rollouter import Rollouter
from swingshift.runtime.step_loop import StepLoop
from swingshift.runtime.step_rollouter import StepRollouter
from swingshift.runtime.train_loop import TrainLoop
from swingshift.runtime.training_call import TrainingCall
from swingshift.schedule.base import DynamicSchedulePolicyBase
from swingshift.schedule.questions import PolicyQuestions
from swingshift.schedule.step_policy import StepPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControlState:
    """The parts of a session that have something to remember."""

    train_loop: TrainLoop | StepLoop
    rollouter: Rollouter | StepRollouter
    prompts: PromptSource
    policy: DynamicSchedulePolicyBase | StepPolicy
    costs: SwitchCosts
    metrics: CycleMetrics
    training: TrainingCall

    def progress(self) -> tuple[int, ...]:
        """Equal twice: nothing was trained, submitted or given up in between."""
        ledger = self.rollouter.ledger
        return (self.train_loop.version, ledger.num_submitted, ledger.num_consumed, ledger.num_failed)

    def read(self, time_s: float) -> dict[str, Any]:
        """As JSON values. Groups under training count as not trained; ``time_s``: seconds of the run so far."""
        ledger = self.rollouter.ledger
        untrained = self.training.untrained()
        return {
            "version": self.train_loop.version,
            "num_cycles": self.train_loop.num_cycles,
            "time_s": time_s,
            "next_group_id": self.rollouter.next_group_id,
            "num_consumed": ledger.num_consumed - len(untrained),
            "num_failed": ledger.num_failed,
            "num_evicted": ledger.num_evicted,
            "queued": [group_to_json(g) for g in (*untrained, *self.rollouter.buffered())],
            "pending": [pending_to_json(p) for p in self.rollouter.pending()],
            "prompts": self.prompts.state_dict(),
            "policy": {"kind": type(self.policy).__name__, **PolicyQuestions(self.policy).saved_state()},
            "switch_costs_s": list(self.costs.round_trips_s),
            "metrics": self.metrics.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """What ``read`` returned. Prompts that were in flight then are submitted again."""
        self.train_loop.version = self.rollouter.version = state["version"]
        self.train_loop.num_cycles = state["num_cycles"]
        self.prompts.load_state_dict(state["prompts"])
        if state["policy"]["kind"] == type(self.policy).__name__:
            PolicyQuestions(self.policy).restore(state["policy"])
        else:
            logger.warning("the checkpoint is of policy %s; this one starts afresh", state["policy"]["kind"])
        self.costs.round_trips_s[:] = state["switch_costs_s"]
        self.metrics.load_state_dict(state["metrics"])
        self.rollouter.restore(
            queued=[group_from_json(g) for g in state["queued"]],
            resubmit=[pending_from_json(p) for p in state["pending"]],
            next_group_id=state["next_group_id"],
            num_consumed=state["num_consumed"],
            num_failed=state["num_failed"],
            num_evicted=state["num_evicted"],
        )
