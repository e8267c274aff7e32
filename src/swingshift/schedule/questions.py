"""Asks a policy, which may be the user's own code: what it raises, and answers of no use, end the run in one line."""

from __future__ import annotations

import json
import math
import numbers
import sys
from collections.abc import Mapping
from typing import Any

from swingshift.core.types import WeightVersion
from swingshift.errors import ConfigError, SwingshiftError
from swingshift.schedule.base import (
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    Rebalance,
    checked_rebalance,
)
from swingshift.schedule.step_policy import StepPolicy
from swingshift.user_code import describe_exception


class PolicyQuestions:
    """One method a question. Raises ConfigError naming the policy and the method."""

    def __init__(self, policy: DynamicSchedulePolicyBase | StepPolicy) -> None:
        self._policy = policy
        self._name = f"policy {type(policy).__module__}:{type(policy).__qualname__}"
        self._file = getattr(sys.modules.get(type(policy).__module__), "__file__", None)

    def should_deactivate(self, version: WeightVersion, is_active: bool, ctx: DynamicScheduleContext) -> bool:
        return self._yes_or_no("should_deactivate", version, is_active, ctx)

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        wanted = self._ask("deactivate_wait_samples", ctx)
        number = float(wanted) if isinstance(wanted, numbers.Real) and not isinstance(wanted, bool) else math.nan
        if not math.isfinite(number):
            raise self._useless("deactivate_wait_samples", wanted, "a number of sample groups")
        return int(number)

    def should_activate_after_step(
        self, version: WeightVersion, is_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self._yes_or_no("should_activate_after_step", version, is_active, ctx)

    def request_rebalance(self, version: WeightVersion, ctx: DynamicScheduleContext) -> Rebalance | None:
        assert isinstance(self._policy, DynamicSchedulePolicyBase), "policies of global steps are not asked"
        return checked_rebalance(self._policy, self._ask("request_rebalance", version, ctx))

    def update_after_step(self, version: WeightVersion, ctx: DynamicScheduleContext) -> None:
        self._ask("update_after_step", version, ctx)

    def state(self) -> dict[str, Any]:
        state = self._ask("state_dict")
        if not isinstance(state, dict):
            raise self._useless("state_dict", state, "a dict of JSON values")
        return state

    def saved_state(self) -> dict[str, Any]:
        """The state, which can be written as JSON."""
        state = self.state()
        try:
            json.dumps(state)
        except (TypeError, ValueError, RecursionError):
            raise self._useless("state_dict", state, "a dict of JSON values") from None
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint, before anything else is asked."""
        self._ask("load_state_dict", state)

    def _yes_or_no(self, method: str, *arguments: object) -> bool:
        answer = self._ask(method, *arguments)
        if answer is None:
            raise self._useless(method, answer, "True or False")
        return bool(answer)

    def _ask(self, method: str, *arguments: object) -> Any:
        try:
            return getattr(self._policy, method)(*arguments)
        except SwingshiftError:
            raise
        except (Exception, SystemExit) as error:  # user code may raise anything
            problem = describe_exception(error, self._file)
            raise ConfigError(f"{self._name}: {method} raised {problem}; correct it") from error

    def _useless(self, method: str, answer: object, wanted: str) -> ConfigError:
        shown = " ".join(repr(answer).split())[:80]
        return ConfigError(f"{self._name}: {method} returned {shown}; return {wanted}")
