"""What a simulated replica knows about the responses it generates, and what they are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swingshift.core.types import GenerationRequest, TokenOutput, VersionSpans
from swingshift.sim.tokens import Pause, SimTokens

Lengths = Callable[[str, int], int]
"""Draws the length of a new response from its request's id and its index."""
Pauses = Callable[[str, int, int], tuple[Pause, ...]]
"""Draws the tool calls of a new response (ascending positions) from its request's id, its index and its length."""


def no_pauses(request_id: str, index: int, length: int) -> tuple[Pause, ...]:
    return ()


@dataclass(slots=True, eq=False)
class Response:
    """One response: ``num_had`` tokens came with the request, ``num_new`` were generated since.

    Its turn ends with token ``turn_end``, at its end (``length``) or where it calls a tool.
    """

    group: Group
    plan: SimTokens
    num_had: int
    length: int
    turn_end: int
    num_prefill: int
    num_new: int = 0
    num_preemptions: int = 0
    num_prefilled: int = 0
    decode_steps: float = 0.0
    ready_at: float = 0.0
    spans: VersionSpans = ()
    output: TokenOutput | None = None

    @property
    def position(self) -> int:
        return self.num_had + self.num_new

    @property
    def context(self) -> int:
        return self.group.prompt_length + self.num_had + self.num_new


@dataclass(slots=True, eq=False)
class Group:
    request_id: str
    prompt_length: int
    responses: list[Response] = field(default_factory=list)
    num_left: int = 0


def turn_end_after(pauses: tuple[Pause, ...], position: int, length: int) -> int:
    """Where the turn that begins at ``position`` ends."""
    return next((at for at, _ in pauses if position < at < length), length)


def group_of(request: GenerationRequest, lengths: Lengths, pauses: Pauses) -> Group:
    """The responses of a request: drawn anew, or going on as their first tokens say."""
    group = Group(request.request_id, len(request.prompt_ids), num_left=len(request.prefixes))
    for index, (prefix, budget) in enumerate(zip(request.prefixes, request.budgets, strict=True)):
        plan, had = _plan(group.request_id, index, prefix, lengths, pauses), len(prefix)
        length = min(plan.wanted, had + budget)
        # The first response prefills the prompt for all.
        num_prefill = had if index else had + group.prompt_length
        turn_end = turn_end_after(plan.pauses, had, length) if plan.pauses else length
        response = Response(group, plan, had, length, turn_end, num_prefill, ready_at=plan.ready_at)
        group.responses.append(response)
    return group


def _plan(request_id: str, index: int, prefix: Any, lengths: Lengths, pauses: Pauses) -> SimTokens:
    """What the response will be if nothing limits it."""
    if type(prefix) is SimTokens:
        assert prefix.start == 0, "a resumed response lost its first tokens"
        return prefix
    assert list(prefix) == list(range(len(prefix))), "a resumed response has tokens that nobody simulated"
    # A checkpoint keeps tokens, not what was to become of them: that is drawn again, and tools are not asked again.
    wanted = max(lengths(request_id, index), len(prefix))
    return SimTokens(wanted, 0, len(prefix), () if len(prefix) else pauses(request_id, index, wanted))
