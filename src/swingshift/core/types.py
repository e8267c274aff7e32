"""The nouns that travel between the rings.

A *prompt* is asked, a *request* carries it (or the continuation of its responses) to one replica, the replica
answers with one *token output* per response, and the finished responses of one prompt form a *sample group*,
the unit of the queue and of every ``*_samples`` count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

ReplicaId = str
WeightVersion = int
Tokens = tuple[int, ...]
LogProbs = tuple[float, ...]
VersionSpans = tuple[tuple[WeightVersion, int], ...]
"""Run-length encoded weight versions of a token sequence: ``((version, num_tokens), ...)``."""


class ReplicaKind(StrEnum):
    STANDALONE = "standalone"
    HYBRID = "hybrid"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class DeviceState(StrEnum):
    """What a device does at one moment; the shares over a run sum to 1."""

    ROLLOUT = "rollout"
    TRAIN = "train"
    SWITCHING = "switching"
    SYNCING = "syncing"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. ``top_k=-1`` and ``top_p=1.0`` switch truncation off; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the dataset, tokenized. ``data`` holds what the reward function needs (JSON values only)."""

    uid: str
    token_ids: Tokens
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One remote call: a prompt and, per unfinished response, the tokens it already has and its budget left."""

    request_id: str
    prompt_ids: Tokens
    prefixes: tuple[Tokens, ...]
    budgets: tuple[int, ...]
    sampling: SamplingParams

    @property
    def num_responses(self) -> int:
        return len(self.prefixes)


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """New tokens of one response (without its prefix), sampled with the given weight versions."""

    token_ids: Tokens
    log_probs: LogProbs
    version_spans: VersionSpans
    finish_reason: FinishReason
    num_preemptions: int = 0
    num_prefill_tokens: int = 0
    decode_steps: float = 0.0
    """Its share of the engine's decode steps: a step counts 1 / batch for each response in it. 0: not counted."""

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.log_probs), "one log-prob a token"
        assert sum(n for _, n in self.version_spans) == len(self.token_ids), "spans must cover the tokens"


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished response. ``num_aborts`` counts how often its generation was interrupted and resumed."""

    token_ids: Tokens
    log_probs: LogProbs
    version_spans: VersionSpans
    finish_reason: FinishReason
    num_preemptions: int = 0
    num_aborts: int = 0
    num_reprefilled_tokens: int = 0
    reward: float | None = None

    @property
    def min_version(self) -> WeightVersion:
        return self.version_spans[0][0] if self.version_spans else 0

    @property
    def max_version(self) -> WeightVersion:
        return self.version_spans[-1][0] if self.version_spans else 0

    @property
    def is_partial(self) -> bool:
        """True if its tokens were sampled with more than one weight version."""
        return self.min_version != self.max_version


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """All responses to one prompt. ``submit_version`` is the trainer's version when the prompt was submitted."""

    group_id: int
    prompt: Prompt
    samples: tuple[Sample, ...]
    submit_version: WeightVersion
    submit_time: float = 0.0
    finish_time: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.samples)

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(s.reward for s in self.samples)

    def with_rewards(self, rewards: tuple[float, ...]) -> SampleGroup:
        assert len(rewards) == len(self.samples)
        pairs = zip(self.samples, rewards, strict=True)
        return replace(self, samples=tuple(replace(s, reward=r) for s, r in pairs))


def join_spans(a: VersionSpans, b: VersionSpans) -> VersionSpans:
    """Concatenate two run-length encodings, merging the seam."""
    if a and b and a[-1][0] == b[0][0]:
        return (*a[:-1], (a[-1][0], a[-1][1] + b[0][1]), *b[1:])
    return a + b
