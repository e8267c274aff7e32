"""The requests on one simulated replica: who waits, who runs, who is finished. Pure; time arrives as an argument.

::

    submit ──▶ waiting ──▶ running ──▶ finished
                  ▲  ▲        │  │
                  │  └────────┘  │ a tool is called
                  │  preempted   ▼
                  └─────────── at a tool

Responses wait first in, first out for one of ``max_num_seqs`` slots and for room in the KV cache. A full cache
preempts the youngest response, which keeps its tokens, goes to the head of the queue and prefills again when there
is room. The prompt of a group is prefilled once; tokens a resumed response already had are prefilled again for each.

While a response waits for a tool it holds no slot, and its cache only as long as nobody needs the room: the cache
of whoever has waited longest goes first. Back from the tool it goes to the head of the queue.

Left out: prompts shared in the cache (every response holds its own copy), and the block size of a paged cache.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ulp
from typing import Any

from swingshift.core.types import FinishReason, GenerationRequest, TokenOutput, WeightVersion, join_spans
from swingshift.sim.decoding import DecodeBatch, DecodeCost
from swingshift.sim.responses import Group, Lengths, Pauses, Response, group_of, no_pauses, turn_end_after
from swingshift.sim.tokens import SimLogProbs, SimTokens

__all__ = ["Finished", "Lengths", "Pauses", "Serving"]

_EPSILON = 1e-6
"""Steps: a response this close to its end is at its end."""

Finished = tuple[str, tuple[TokenOutput, ...]]
"""A request's id and its outputs."""


@dataclass(slots=True)
class Serving:
    """``kv_capacity_tokens`` bounds the tokens in caches, unless a single response needs more; None: no bound."""

    cost: DecodeCost
    max_num_seqs: int
    kv_capacity_tokens: int | None
    lengths: Lengths
    pauses: Pauses = no_pauses
    version: WeightVersion = -1
    now: float = 0.0
    num_decoded_tokens: int = 0
    num_prefilled_tokens: int = 0
    num_joins: int = 0
    num_leaves: int = 0
    num_outputs: int = 0
    num_preemptions: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    _waiting: OrderedDict[Response, None] = field(default_factory=OrderedDict)
    _at_tools: list[tuple[float, int, Response]] = field(default_factory=list)
    _held: OrderedDict[Response, int] = field(default_factory=OrderedDict)
    """Cached tokens of responses that are out of the batch because of a tool."""
    _held_tokens: int = 0
    _batch: DecodeBatch[Response] = field(init=False)
    _order: int = 0

    def __post_init__(self) -> None:
        self._batch = DecodeBatch(self.cost)

    @property
    def num_running(self) -> int:
        return len(self._batch.slots)

    @property
    def cached_tokens(self) -> float:
        return self._batch.kv_tokens + self._held_tokens

    # --- requests ---------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest) -> None:
        """Its responses wait. Advance to now first, and call ``admit`` once the replica may run them."""
        assert request.request_id not in self.groups, f"request {request.request_id} is here already"
        group = group_of(request, self.lengths, self.pauses)
        self.groups[group.request_id] = group
        for response in group.responses:
            if response.ready_at > self.now:
                self._wait_for_tool(response)
            else:
                self._waiting[response] = None

    def abort(self, request_ids: Iterable[str]) -> list[Finished]:
        """End requests with the tokens they have. Advance to now first."""
        ended: list[Finished] = []
        for request_id in request_ids:
            group = self.groups.get(request_id)
            for response in list(group.responses) if group is not None else ():
                if response.output is None:
                    self._take_out(response)
                    self._finish(response, FinishReason.ABORT, ended)
        return ended

    def drop(self, request_id: str) -> None:
        """The caller went away. Advance to now first."""
        group = self.groups.pop(request_id)
        for response in group.responses:
            if response.output is None:
                self._take_out(response)
        group.responses.clear()

    def clear(self) -> None:
        self.groups.clear()
        self._waiting.clear()
        self._at_tools.clear()
        self._held.clear()
        self._held_tokens = 0
        self._batch = DecodeBatch(self.cost)

    # --- time -------------------------------------------------------------------------------------------------

    def hold_up(self, seconds: float) -> None:
        """Compute nothing for so long. Advance to now first."""
        if self._batch.slots:
            self._batch.held_up_s += seconds

    def advance(self, now: float) -> list[Finished]:
        """Bring every response to ``now``; returns the requests whose last response ended."""
        elapsed_s, self.now = now - self.now, now
        batch = self._batch
        ended: list[Finished] = []
        if batch.slots:
            batch.advance(elapsed_s)
            # Late in a long run the clock itself cannot tell two moments apart that are closer than this.
            tolerance = max(_EPSILON, 4 * ulp(now) / batch.step_s(), 4 * ulp(batch.steps))
            for response in batch.finished(tolerance):
                self._end_turn(response, ended)
            if self.kv_capacity_tokens is not None:
                self._preempt(tolerance)
        if self._at_tools:
            self._return_from_tools()
        return ended

    def admit(self) -> float | None:
        """Fill free slots from the queue, as far as the KV cache has room.

        Returns the seconds until a response ends, calls a tool or returns from one, or the cache is full;
        None: never.
        """
        batch = self._batch
        while self._waiting and len(batch.slots) < self.max_num_seqs:
            response = next(iter(self._waiting))
            if not self._make_room(response):
                break
            del self._waiting[response]
            if self._held and self._let_go(response):
                response.num_prefill = 0
            position = response.num_had + response.num_new
            context = response.group.prompt_length + position
            batch.join(response, context, response.turn_end - position, response.num_prefill)
            self.num_joins += 1
        room = None
        if self.kv_capacity_tokens is not None and (len(batch.slots) > 1 or self._held):
            room = self.kv_capacity_tokens - self._held_tokens
        seconds = batch.seconds_to_next_end(room)
        return self._until_return(seconds) if self._at_tools else seconds

    # --- the KV cache -----------------------------------------------------------------------------------------

    def _make_room(self, response: Response) -> bool:
        """Is there room for a response to join, and for the step after? Alone it always may."""
        if self.kv_capacity_tokens is None:
            return True
        batch = self._batch
        joining = 0 if response in self._held else response.context
        needed = batch.kv_tokens + joining + len(batch.slots) + 1
        while needed + self._held_tokens > self.kv_capacity_tokens:
            if not self._evict(spare=response):
                return not batch.slots
        return True

    def _preempt(self, tolerance: float) -> None:
        assert self.kv_capacity_tokens is not None
        batch = self._batch
        slack = 2 * tolerance * max(1, len(batch.slots))
        # Who runs needs room for one more token; a cache that nobody adds to may be full.
        limit = self.kv_capacity_tokens + (-slack if batch.slots else slack)
        while batch.kv_tokens + self._held_tokens >= limit:
            if self._held and self._evict():
                continue
            if len(batch.slots) < 2:
                return
            response = batch.youngest()
            self._leave(response)
            response.num_preemptions += 1
            self.num_preemptions += 1
            self._requeue(response)

    def _evict(self, spare: Response | None = None) -> bool:
        """Give up the cache of whoever has waited longest for a tool; False if nobody (else) holds one."""
        for response in self._held:
            if response is not spare:
                self._let_go(response)
                return True
        return False

    def _let_go(self, response: Response) -> bool:
        tokens = self._held.pop(response, None)
        self._held_tokens -= tokens or 0
        return tokens is not None

    def _requeue(self, response: Response) -> None:
        response.num_prefill = response.context
        self._waiting[response] = None
        self._waiting.move_to_end(response, last=False)

    # --- tools ------------------------------------------------------------------------------------------------

    def _end_turn(self, response: Response, ended: list[Finished]) -> None:
        self._leave(response, to_the_end=True)
        plan, position = response.plan, response.turn_end
        if position == response.length:
            reason = FinishReason.STOP if plan.wanted == position else FinishReason.LENGTH
            self._finish(response, reason, ended)
            return
        response.turn_end = turn_end_after(plan.pauses, position, response.length)
        response.ready_at = self.now + next(wait_s for at, wait_s in plan.pauses if at == position)
        self._held[response] = response.context
        self._held_tokens += response.context
        self._wait_for_tool(response)

    def _wait_for_tool(self, response: Response) -> None:
        self._order += 1
        heapq.heappush(self._at_tools, (response.ready_at, self._order, response))

    def _return_from_tools(self) -> None:
        limit = self.now + 4 * ulp(self.now)
        while self._at_tools and self._at_tools[0][0] <= limit:
            response = heapq.heappop(self._at_tools)[2]
            if not self._is_gone(response):
                self._requeue(response)

    def _until_return(self, seconds: float | None) -> float | None:
        """The next return from a tool, or ``seconds`` if that is sooner."""
        while self._at_tools and self._is_gone(self._at_tools[0][2]):
            heapq.heappop(self._at_tools)
        if not self._at_tools:
            return seconds
        to_return = self._at_tools[0][0] - self.now
        return to_return if seconds is None else min(seconds, to_return)

    def _is_gone(self, response: Response) -> bool:
        return response.output is not None or self.groups.get(response.group.request_id) is not response.group

    # --- one response -----------------------------------------------------------------------------------------

    def _take_out(self, response: Response) -> None:
        if response in self._batch.slots:
            self._leave(response)
        else:
            self._waiting.pop(response, None)
            self._let_go(response)

    def _leave(self, response: Response, *, to_the_end: bool = False) -> None:
        """Out of the batch, with the whole tokens it got there."""
        response.decode_steps += self._batch.share_of(response)
        num_steps, prefill_left_s = self._batch.leave(response)
        self.num_leaves += 1
        left = response.turn_end - response.num_had - response.num_new
        num_new = left if to_the_end else min(left, int(num_steps + _EPSILON))
        # Count what was prefilled, not what should have been.
        num_skipped = round(prefill_left_s / self.cost.per_prefill_token_s) if prefill_left_s > 0.0 else 0
        response.num_prefilled += response.num_prefill - num_skipped
        self.num_prefilled_tokens += response.num_prefill - num_skipped
        if num_new:
            response.num_new += num_new
            self.num_decoded_tokens += num_new
            spans = ((self.version, num_new),)
            response.spans = join_spans(response.spans, spans) if response.spans else spans

    def _finish(self, response: Response, reason: FinishReason, ended: list[Finished]) -> None:
        group, plan = response.group, response.plan
        ready_at = response.ready_at if response.ready_at > self.now else 0.0
        tokens: Any = SimTokens(plan.wanted, response.num_had, response.position, plan.pauses, ready_at)
        log_probs: Any = SimLogProbs(response.num_new)
        response.output = TokenOutput(
            tokens,
            log_probs,
            response.spans,
            reason,
            response.num_preemptions,
            response.num_prefilled,
            response.decode_steps,
        )
        self.num_outputs += 1
        group.num_left -= 1
        if not group.num_left:
            del self.groups[group.request_id]
            outputs = tuple(r.output for r in group.responses if r.output is not None)
            # Group and responses name each other: parted here, they need no garbage collector.
            group.responses.clear()
            ended.append((group.request_id, outputs))
