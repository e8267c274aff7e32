"""Scheduling policies: when the trainer's devices join rollout, and when they come back. Pure."""

from swingshift.schedule.base import (
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    Rebalance,
    available_policies,
    build_policy,
    register_policy,
)
from swingshift.schedule.default import DefaultDynamicSchedulePolicy
from swingshift.schedule.fixed_ratio import FixedRatioDynamicSchedulePolicy
from swingshift.schedule.static_fully_async import StaticFullyAsyncPolicy

__all__ = [
    "DefaultDynamicSchedulePolicy",
    "DynamicScheduleContext",
    "DynamicSchedulePolicyBase",
    "FixedRatioDynamicSchedulePolicy",
    "Rebalance",
    "StaticFullyAsyncPolicy",
    "available_policies",
    "build_policy",
    "register_policy",
]
