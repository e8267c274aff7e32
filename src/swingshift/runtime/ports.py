"""What the control plane needs from the outside, as small Protocols.

The same control plane runs in virtual time (``sim``), on this machine and on a cluster (``cluster``): only the
objects behind these Protocols change. Every coroutine here may raise; none may block the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from swingshift.core.types import (
    GenerationRequest,
    Prompt,
    ReplicaId,
    ReplicaKind,
    SampleGroup,
    TokenOutput,
    WeightVersion,
)


class Replica(Protocol):
    """One inference engine group. Verbs as vLLM spells them; calls take effect in the order they were made.

    Life: ``asleep`` (refuses requests, holds no KV cache) → ``wake_up`` → ``paused`` (holds new requests back)
    → ``resume_generation`` → ``accepting`` → ``abort``/``sleep`` → ``asleep``.
    """

    id: ReplicaId
    kind: ReplicaKind
    devices: tuple[str, ...]
    """Names of the devices it computes on, as they appear in the timeline."""

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        """Generate all responses of the request; one output per prefix, in order.

        Aborted responses come back with what they have and ``FinishReason.ABORT``.
        Raises NotAcceptingError (asleep or refusing) and ReplicaDiedError.
        """

    async def abort(self, *, refuse: bool = False) -> int:
        """Abort everything in flight and return the number of aborted requests.

        Acknowledged: when it returns, the replica computes nothing for them any more. With ``refuse`` every
        later request is refused with NotAcceptingError until ``resume_generation``; without, it is held back.
        """

    async def abort_requests(self, request_ids: Sequence[str]) -> int:
        """Abort only these requests; the rest goes on. Acknowledged like ``abort``."""

    async def resume_generation(self) -> None:
        """Accept and run requests (again)."""

    async def release_kv_cache(self) -> None:
        """Free the KV cache before a weight sync. Only while nothing is in flight."""

    async def resume_kv_cache(self) -> None:
        """Allocate the KV cache again and forget every cached prefix."""

    async def health(self) -> None:
        """Answer if requests are still being worked on. Raises ReplicaError if it knows better."""

    async def sleep(self, level: int = 2) -> None:
        """Free KV cache and (level 2) weights; refuse requests. Only while nothing is in flight."""

    async def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Allocate what ``tags`` names. The replica stays paused."""


class ReplicaStarter(Protocol):
    """Replaces replicas that failed."""

    async def restart(self, replica: Replica) -> Replica:
        """End what is left of it and start another with the same id on the same devices, without weights.

        A standalone one in a process of its own, awake; a hybrid one in the trainer's process, asleep.
        Raises ReplicaError if that fails; the caller sets the deadline.
        """


class WeightSync(Protocol):
    """Moves the trainer's weights into replicas. A replica's version changes in the same step as its weights."""

    async def publish(self, version: WeightVersion) -> None:
        """Make the trainer's current weights available as ``version`` (e.g. one copy in shared memory)."""

    async def sync_standalone(self, replica: Replica, version: WeightVersion) -> None:
        """Write the published weights into one standalone replica, whose KV cache is released."""

    async def sync_hybrid(self, replica: Replica, version: WeightVersion) -> None:
        """Let one hybrid replica (weights awake) read the weights on its own device."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one collection's training returns.

    ``timings_s`` has the phases ``old_log_prob``, ``ref``, ``values``, ``adv``, ``update_critic`` and
    ``update_actor`` (absent means 0); ``metrics`` are flat floats such as ``actor/pg_loss``.
    """

    timings_s: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class TrainWorker(Protocol):
    """The trainer, however many devices it spans."""

    devices: tuple[str, ...]

    async def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        """One optimizer pass over whole groups with rewards, in mini-batches; ``version`` is the trainer's own."""

    async def offload(self) -> None:
        """Free or move what training needs, so that the device can be lent (gradients, optimizer state)."""

    async def onload(self) -> None:
        """Take back what ``offload`` gave away."""

    async def save(self, folder: Path) -> None:
        """Write model (Hugging Face folder), optimizer and RNG state into an existing folder, all or an error."""

    async def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote."""


class PromptSource(Protocol):
    """The dataset as a cursor: deterministic order, epochs included."""

    def next(self) -> Prompt | None:
        """The next prompt, or None at the end of the last epoch."""

    def remaining(self) -> int:
        """How many ``next`` calls will still return a prompt."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class RewardFn(Protocol):
    """Scores finished responses away from the control loop."""

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        """One finite reward per sample, in order. Raises DataError when the user's function fails."""


class RunOutcome(StrEnum):
    """How a run ended. ``INTERRUPTED``: in order, because it was told to."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class MetricSink(Protocol):
    """Where metric rows go. A sink may fail: it is warned about once and never stops training."""

    def log(self, step: int, row: Mapping[str, float]) -> None: ...

    def close(self, outcome: RunOutcome) -> None: ...
