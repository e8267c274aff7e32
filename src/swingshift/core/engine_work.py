"""What engines computed between two weight syncs, added up from their answers. Pure.

A weight sync ends every request, so that the answers up to it are all that was computed since the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swingshift.core.types import GenerationRequest, ReplicaKind, TokenOutput

ENGINE_METRICS = (
    ("num_requests", "requests", "answers, those to aborted requests too"),
    ("num_tokens", "tokens", "response tokens decoded between two weight syncs, those of unfinished responses too"),
    ("num_decode_steps", "steps", "decode steps, each of one engine; 0 where the engine does not count them"),
    ("num_cached_tokens", "tokens", "Σ over decode steps of the tokens in the caches of the responses decoded"),
    ("num_prefill_tokens", "tokens", "prefilled, prompts and what moved or resumed responses had"),
    ("busy_s", "device·s", "devices of this kind in state rollout"),
)
"""Name, unit and meaning of a row's ``engine/<kind>/<name>``."""


@dataclass(slots=True)
class EngineWork:
    """Of all replicas of one kind."""

    num_requests: int = 0
    num_tokens: int = 0
    num_decode_steps: float = 0.0
    num_cached_tokens: float = 0.0
    num_prefill_tokens: int = 0

    def add(self, request: GenerationRequest, outputs: Sequence[TokenOutput]) -> None:
        """One answer. A response with ``n`` new tokens after ``c`` others has read ``n·(c + n/2)`` cached ones."""
        prompt = len(request.prompt_ids)
        self.num_requests += 1
        for prefix, output in zip(request.prefixes, outputs, strict=True):
            n = len(output.token_ids)
            self.num_tokens += n
            self.num_decode_steps += output.decode_steps
            self.num_cached_tokens += n * (prompt + len(prefix) + n / 2)
            self.num_prefill_tokens += output.num_prefill_tokens


class EngineMeter:
    """Adds up both kinds of replicas, and the control process; ``close`` ends a window and begins the next."""

    def __init__(self) -> None:
        self.read_busy_s: Callable[[], Mapping[ReplicaKind, float]] = dict
        """Device-seconds of rollout by kind since the start of the run."""
        self._work = {kind: EngineWork() for kind in ReplicaKind}
        self._busy_s = dict.fromkeys(ReplicaKind, 0.0)
        self._read_cpu_s: Callable[[], float] = lambda: 0.0
        self._cpu_s = 0.0
        self._num_shared_cores = 0

    def watch_cpu(self, read_cpu_s: Callable[[], float], num_shared_cores: int) -> None:
        """From now on: CPU seconds of the control process, and the cores that it shares with devices."""
        self._read_cpu_s, self._cpu_s, self._num_shared_cores = read_cpu_s, read_cpu_s(), num_shared_cores

    def add(self, kind: ReplicaKind, request: GenerationRequest, outputs: Sequence[TokenOutput]) -> None:
        self._work[kind].add(request, outputs)

    def close(self) -> dict[str, float]:
        """The window's metrics, by their whole names."""
        row: dict[str, float] = {}
        totals_s = self.read_busy_s()
        for kind, work in self._work.items():
            total_s = totals_s.get(kind, 0.0)
            values = (
                work.num_requests,
                work.num_tokens,
                work.num_decode_steps,
                work.num_cached_tokens,
                work.num_prefill_tokens,
                total_s - self._busy_s[kind],
            )
            names = (f"engine/{kind.value}/{name}" for name, _, _ in ENGINE_METRICS)
            row.update(zip(names, map(float, values), strict=True))
            self._busy_s[kind] = total_s
            self._work[kind] = EngineWork()
        before, self._cpu_s = self._cpu_s, self._read_cpu_s()
        row |= {"perf/control_cpu_s": self._cpu_s - before, "perf/num_shared_cores": float(self._num_shared_cores)}
        return row
