"""What a policy is, what it knows, and how it is found by name.

A policy decides and explains; it performs nothing and holds no handles. In every collection the train loop asks
``should_deactivate`` and, if true, ``deactivate_wait_samples``; at the end of every sync cycle it asks
``should_activate_after_step``, then ``request_rebalance`` (after an activation) and tells ``update_after_step``.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from swingshift.errors import ConfigError
from swingshift.user_code import blamed_on, load_object

ENTRY_POINT_GROUP = "swingshift.policies"
CONFIG_KEY = "async_training.dynamic_schedule_policy"


class Rebalance(StrEnum):
    """How requests in flight are redistributed after an activation."""

    FULL = "full"
    """Clear the sticky cache, abort everything on every replica, resume by least load."""
    PROPORTIONAL = "proportional"
    """Move only the requests above each replica's fair share."""


@dataclass(frozen=True, slots=True)
class DynamicScheduleContext:
    """What a policy may know. Counts are sample groups, durations seconds."""

    required_samples: int
    """Groups per collection: ``ppo_mini_batch_size × require_batches``."""
    trigger_parameter_sync_step: int
    """Collections per sync cycle."""
    total_generated_samples: int = 0
    """Groups generated since training began."""
    expected_samples: int = 0
    """Groups the trainer has consumed or is entitled to by the end of the current cycle."""
    buffer_samples: int = 0
    """``step_required_samples × staleness_threshold``."""
    step_wait_times: list[float] = field(default_factory=list)
    """Wait of each collection of the latest cycle."""
    step_wait_samples: list[int] = field(default_factory=list)
    """Groups each collection really waited for: ``max(0, required_samples − queued at its start)``."""
    only_hybrid: bool = False
    """True while no standalone replica lives."""
    last_activate_duration_s: float = 0.0
    last_deactivate_duration_s: float = 0.0
    switch_costs_s: tuple[float, ...] = ()
    """Latest round trips (an activation plus the deactivation that followed it), oldest first."""
    max_required_samples: int | None = None
    """Most groups that may be outstanding in one cycle."""

    @property
    def step_required_samples(self) -> int:
        """Groups per sync cycle."""
        return self.required_samples * self.trigger_parameter_sync_step


class DynamicSchedulePolicyBase(ABC):
    """Base class of policies. ``global_steps`` is the trainer's weight version."""

    decision: str = ""
    """Why the latest decision was taken, with its numbers; for logs and reports."""

    @abstractmethod
    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        """Give the hybrid devices back before this collection?"""

    @abstractmethod
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Groups that must be buffered before the devices go back."""

    @abstractmethod
    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Lend the hybrid devices after this weight sync?"""

    # The two optional hooks do nothing unless a policy wants them.
    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:  # noqa: B027
        """Learn from the cycle that just ended."""

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        """How to redistribute requests after an activation; None leaves them where they are."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What the policy has learnt, as JSON values; goes into checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore what ``state_dict`` returned."""


PolicyClass = TypeVar("PolicyClass", bound=type[DynamicSchedulePolicyBase])
_REGISTRY: dict[str, type[DynamicSchedulePolicyBase]] = {}


def register_policy(name: str) -> Callable[[PolicyClass], PolicyClass]:
    """Class decorator: make a policy known as ``name``. Registering another class under a name is an error."""

    def register(cls: PolicyClass) -> PolicyClass:
        known = _REGISTRY.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"policy {name!r} is registered already, by {known.__module__}; choose another name")
        _REGISTRY[name] = cls
        return cls

    return register


def available_policies() -> dict[str, str]:
    """Policy names and where each comes from."""
    found = {name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in _REGISTRY.items()}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, f"entry point {point.value}")
    return dict(sorted(found.items()))


def find_policy(name: str) -> type[DynamicSchedulePolicyBase]:
    """The class behind a registered name, an entry point of ``swingshift.policies``, or ``module:Class``."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return _checked(name, _load(point))
    if ":" in name:
        return _checked(name, load_object(name, CONFIG_KEY))
    near = get_close_matches(name, available_policies(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(available_policies())}"
    raise ConfigError(f"{CONFIG_KEY}={name}: no policy is called so; {hint}")


def build_policy(
    name: str, *, deactivate_ratio: float = 0.3, only_hybrid: bool = False, **kwargs: Any
) -> DynamicSchedulePolicyBase:
    """Construct a policy by name. Raises ConfigError naming the key for unknown names and wrong arguments."""
    cls = find_policy(name)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    with blamed_on(f"{CONFIG_KEY}={name}", "building the policy", f"correct it, or {CONFIG_KEY}_kwargs", file):
        return cls(deactivate_ratio=deactivate_ratio, only_hybrid=only_hybrid, **kwargs)  # type: ignore[call-arg]


def checked_rebalance(policy: DynamicSchedulePolicyBase, answer: Any) -> Rebalance | None:
    """What a policy's ``request_rebalance`` answered, which may be the plain word. Raises ConfigError for others."""
    if answer is None:
        return None
    try:
        return Rebalance(answer)
    except ValueError:
        shown = " ".join(repr(answer).split())[:80]
    words = " or ".join(repr(kind.value) for kind in Rebalance)
    raise ConfigError(
        f"{CONFIG_KEY}: {type(policy).__module__}:{type(policy).__qualname__}.request_rebalance returned {shown}; "
        f"return a Rebalance ({words}), or None to leave requests where they are"
    )


def _load(point: EntryPoint) -> object:
    setting, doing = f"{CONFIG_KEY}={point.name}", f"loading the entry point {point.value}"
    with blamed_on(setting, doing, "correct the package that offers it, or name another policy"):
        return point.load()


def _checked(name: str, found: object) -> type[DynamicSchedulePolicyBase]:
    if not (isinstance(found, type) and issubclass(found, DynamicSchedulePolicyBase)):
        raise ConfigError(
            f"{CONFIG_KEY}={name}: is not a subclass of DynamicSchedulePolicyBase; correct the class, or name another"
        )
    return found
