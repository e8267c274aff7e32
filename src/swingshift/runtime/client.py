"""Generates whole groups: routes them, keeps what aborted requests had, and continues elsewhere.

One request carries every unfinished response of a group (one remote call, one prefill). An aborted request
returns the tokens it has; the client re-acquires at once, with each response's budget reduced by what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from swingshift.core.engine_work import EngineMeter
from swingshift.core.types import (
    FinishReason,
    GenerationRequest,
    LogProbs,
    Prompt,
    ReplicaId,
    Sample,
    SamplingParams,
    TokenOutput,
    Tokens,
    VersionSpans,
    join_spans,
)
from swingshift.errors import DataError, NotAcceptingError, ReplicaDiedError, ReplicaError
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.observations import Attempt, Outcome, attempt_of
from swingshift.runtime.ports import Replica
from swingshift.runtime.signals import Signal

logger = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Replicas that may die under one prompt before the prompt is blamed."""


@dataclass(slots=True)
class PartialResponse:
    """A response under way."""

    token_ids: Tokens = ()
    log_probs: LogProbs = ()
    version_spans: VersionSpans = ()
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    num_aborts: int = 0
    num_reprefilled_tokens: int = 0

    def append(self, output: TokenOutput, sampling: SamplingParams, keep_partial: bool) -> None:
        """Take over one output; afterwards ``finish_reason`` is set if the response is finished."""
        resumed = self.num_aborts > 0
        if resumed:
            self.num_reprefilled_tokens += output.num_prefill_tokens
        self.num_preemptions += output.num_preemptions
        token_ids = self.token_ids + output.token_ids
        finish_reason = _finish_reason(token_ids, output.finish_reason, sampling)
        if finish_reason is FinishReason.ABORT:
            # Aborted before its first token, a response has lost nothing.
            self.num_aborts += len(token_ids) > 0
            if not keep_partial:
                # Empty slices, not empty tuples: simulated tokens remember what the response is to become.
                self.token_ids, self.log_probs, self.version_spans = token_ids[:0], (), ()
                return
        spans = join_spans(self.version_spans, output.version_spans)
        assert all(a[0] <= b[0] for a, b in pairwise(spans)), "weight versions decreased"
        self.token_ids, self.log_probs, self.version_spans = token_ids, self.log_probs + output.log_probs, spans
        assert len(self.token_ids) <= sampling.max_tokens, "the token budget was exceeded"
        if finish_reason is not FinishReason.ABORT:
            self.finish_reason = finish_reason

    def finished(self) -> Sample:
        assert self.finish_reason is not None
        return Sample(
            token_ids=self.token_ids,
            log_probs=self.log_probs,
            version_spans=self.version_spans,
            finish_reason=self.finish_reason,
            num_preemptions=self.num_preemptions,
            num_aborts=self.num_aborts,
            num_reprefilled_tokens=self.num_reprefilled_tokens,
        )


def _finish_reason(token_ids: Tokens, reported: FinishReason, sampling: SamplingParams) -> FinishReason:
    """A stop token at the very end of the budget is a stop; a full budget is a length, even if aborted."""
    if sampling.stop_token_ids and token_ids and token_ids[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    if len(token_ids) >= sampling.max_tokens:
        return FinishReason.LENGTH
    return reported


class GenerationClient:
    """``on_death`` is told of a replica whose process is gone; it has left the balancer by then."""

    def __init__(self, balancer: LoadBalancer, partial_rollout: bool = True) -> None:
        self._balancer = balancer
        self._partial_rollout = partial_rollout
        self._ended = Signal(balancer.board)
        self._calls: dict[ReplicaId, dict[asyncio.Timeout, None]] = {}
        """Ordered: whoever is given up first asks another replica first, in every run alike."""
        self.on_death: Callable[[Replica, ReplicaDiedError], None] = lambda replica, error: None
        self.meter = EngineMeter()
        """Counts what every answer took to compute, a validation's too."""
        self._on_attempt: Callable[[Attempt], None] | None = None
        self._now: Callable[[], float] = lambda: 0.0

    def observe(self, on_attempt: Callable[[Attempt], None], now: Callable[[], float]) -> None:
        """Tell of every attempt on the clock ``now``. Unobserved, attempts cost nothing."""
        self._on_attempt, self._now = on_attempt, now

    async def generate(
        self,
        request_id: str,
        prompt: Prompt,
        num_responses: int,
        sampling: SamplingParams,
        responses: list[PartialResponse] | None = None,
    ) -> tuple[Sample, ...]:
        """All responses to one prompt, in order. The caller's sampling parameters are never changed.

        ``responses`` is filled in place, so that the caller sees what replicas have returned so far; it may begin
        with what an earlier try or session had. Raises NoReplicaError when no replica appears in time, DataError
        for a prompt under which replicas die, and whatever a replica raises about the request.
        """
        if responses is None:
            responses = []
        responses.extend(PartialResponse() for _ in range(num_responses - len(responses)))
        assert len(responses) == num_responses, "more responses than were asked for"
        deaths: list[ReplicaId] = []
        while unfinished := [r for r in responses if r.finish_reason is None]:
            request = _request(request_id, prompt, unfinished, sampling)
            outputs = await self._try(request, deaths)
            if len(deaths) > MAX_DEATHS:
                raise DataError(f"prompt {prompt.uid}: {len(deaths)} replicas died under it ({', '.join(deaths)})")
            if outputs is None:
                continue
            for response, output in zip(unfinished, outputs, strict=True):
                response.append(output, sampling, self._partial_rollout)
        return tuple(r.finished() for r in responses)

    async def _try(self, request: GenerationRequest, deaths: list[ReplicaId]) -> tuple[TokenOutput, ...] | None:
        """One attempt on one replica; None if it refused or died (``deaths`` grows), and another should be asked."""
        num_tokens = sum(len(request.prompt_ids) + len(p) + b for p, b in _pairs(request))
        lease, replica = await self._balancer.acquire(request.request_id, num_tokens)
        outputs: tuple[TokenOutput, ...] | None = None
        start_s, failure = self._now(), Outcome.CANCELLED
        try:
            outputs = await self._call(replica, request)
            failure = Outcome.REFUSED
            return outputs
        except NotAcceptingError:
            failure = Outcome.REFUSED
            # Routing is cut before a replica is told to refuse, so the refusal was on its way meanwhile.
            if self._balancer.table.is_alive(lease):
                raise
            return None
        except ReplicaDiedError as error:
            failure = Outcome.REFUSED
            logger.warning("replica %s died under request %s: %s", replica.id, request.request_id, error)
            deaths.append(replica.id)
            self._balancer.remove((replica,))
            self.on_death(replica, error)
            return None
        except ReplicaError:
            failure = Outcome.FAILED
            # If it is tried again, perhaps another replica can do it.
            self._balancer.table.forget_sticky((request.request_id,))
            raise
        finally:
            self._balancer.release(lease)
            if self._on_attempt is not None:
                self._on_attempt(attempt_of(request, replica.id, start_s, self._now(), outputs, failure))

    async def _call(self, replica: Replica, request: GenerationRequest) -> tuple[TokenOutput, ...] | None:
        """The replica's answer; None if it was taken out meanwhile."""
        calls = self._calls.setdefault(replica.id, {})
        call = asyncio.timeout(None)
        calls[call] = None
        try:
            async with call:
                outputs = await replica.generate(request)
        except TimeoutError:
            if not call.expired():
                raise
            return None
        finally:
            calls.pop(call, None)
            self._ended.notify()
        assert len(outputs) == request.num_responses, "one output per response"
        self.meter.add(replica.kind, request, outputs)
        return outputs

    async def idle(self) -> None:
        """Wait until no replica owes an answer. Cut routing and abort what is in flight first."""
        await self._ended.until(
            lambda: not any(self._calls.values()), who="session", what=lambda: "what replicas had generated so far"
        )

    def give_up(self, replica: Replica) -> None:
        """A replica was taken out: whatever still waits for its answer asks another one, with the tokens it had."""
        now = asyncio.get_running_loop().time()
        for call in self._calls.pop(replica.id, ()):
            call.reschedule(now)


def _pairs(request: GenerationRequest) -> zip[tuple[Tokens, int]]:
    return zip(request.prefixes, request.budgets, strict=True)


def _request(
    request_id: str, prompt: Prompt, unfinished: list[PartialResponse], sampling: SamplingParams
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt.token_ids,
        prefixes=tuple(r.token_ids for r in unfinished),
        budgets=tuple(sampling.max_tokens - len(r.token_ids) for r in unfinished),
        sampling=sampling,
    )
