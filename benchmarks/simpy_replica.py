"""A replica in SimPy, twice: the simulator's own serving model, and one event for every decode step.

SimPy itself is imported by whoever makes the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swingshift.core.types import GenerationRequest
from swingshift.sim.decoding import DecodeCost
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.serving import Serving

COST = ReplicaCost(
    step_base_s=0.02,
    step_per_sequence_s=1e-4,
    step_per_kv_token_s=2e-8,
    prefill_per_token_s=1e-5,
    max_num_seqs=64,
    kv_capacity_tokens=200_000,
)


class SimpyReplica:
    """The same serving model, driven by SimPy's event queue."""

    def __init__(self, env: Any, lengths: Callable[[str, int], int]) -> None:
        self.env = env
        self.serving = Serving(COST.decode, COST.max_num_seqs, COST.kv_capacity_tokens, lengths, version=0)
        self.answers: dict[str, Any] = {}
        self.turn = 0

    def generate(self, request: GenerationRequest) -> Any:
        answer = self.answers[request.request_id] = self.env.event()
        self.advance()
        self.serving.submit(request)
        self.schedule()
        return answer

    def advance(self) -> None:
        for request_id, outputs in self.serving.advance(self.env.now):
            self.answers.pop(request_id).succeed(outputs)

    def schedule(self) -> None:
        self.turn += 1
        seconds = self.serving.admit()
        if seconds is not None:
            turn = self.turn
            self.env.timeout(seconds).callbacks.append(lambda event: self.tick(turn))

    def tick(self, turn: int) -> None:
        if turn == self.turn:
            self.advance()
            self.schedule()


class SimpySteps:
    """The obvious way: one event a decode step, no KV limit."""

    def __init__(self, env: Any, lengths: Callable[[str, int], int]) -> None:
        self.env = env
        self.answers: dict[str, Any] = {}
        self.lengths = lengths
        self.waiting: list[str] = []
        self.running: dict[str, list[int]] = {}
        env.process(self.run())

    def generate(self, request: GenerationRequest) -> Any:
        answer = self.answers[request.request_id] = self.env.event()
        self.waiting.append(request.request_id)
        return answer

    def run(self) -> Any:
        cost: DecodeCost = COST.decode
        while True:
            while self.waiting and len(self.running) < COST.max_num_seqs:
                name = self.waiting.pop(0)
                self.running[name] = [64, min(8192, self.lengths(name, 0))]
                yield self.env.timeout(64 * cost.per_prefill_token_s)
            cached = sum(context for context, _ in self.running.values())
            step_s = cost.base_s + cost.per_sequence_s * len(self.running) + cost.per_kv_token_s * cached
            yield self.env.timeout(step_s)
            for name, counts in list(self.running.items()):
                counts[0] += 1
                counts[1] -= 1
                if not counts[1]:
                    del self.running[name]
                    self.answers.pop(name).succeed()
