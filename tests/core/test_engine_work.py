"""What engines computed, counted by hand."""

from __future__ import annotations

from swingshift.core.engine_work import ENGINE_METRICS, EngineMeter
from swingshift.core.types import FinishReason, GenerationRequest, ReplicaKind, SamplingParams, TokenOutput


def answer(num_tokens: int, prefill: int, steps: float) -> TokenOutput:
    tokens, logs = (7,) * num_tokens, (-1.0,) * num_tokens
    spans = ((0, num_tokens),) if num_tokens else ()
    return TokenOutput(tokens, logs, spans, FinishReason.ABORT, 0, prefill, steps)


REQUEST = GenerationRequest("0", (1, 2, 3), ((), (4, 5)), (10, 8), SamplingParams(max_tokens=10))
"""A prompt of 3 tokens; the second of two responses already has 2."""


def test_both_kinds_are_counted_by_hand_and_windows_begin_anew() -> None:
    meter = EngineMeter()
    busy_s = {ReplicaKind.STANDALONE: 2.0, ReplicaKind.HYBRID: 0.5}
    meter.read_busy_s = lambda: busy_s
    meter.add(ReplicaKind.STANDALONE, REQUEST, (answer(4, 3, 2.5), answer(2, 2, 1.0)))
    meter.add(ReplicaKind.STANDALONE, REQUEST, (answer(0, 0, 0.0), answer(1, 0, 0.5)))
    meter.add(ReplicaKind.HYBRID, REQUEST, (answer(2, 3, 1.0), answer(0, 0, 0.0)))
    row = meter.close()
    # 4 tokens on caches of 3 to 7, 2 on 5 to 7, 1 on 5 to 6.
    assert {name: row[f"engine/standalone/{name}"] for name, _, _ in ENGINE_METRICS} == {
        "num_requests": 2.0,
        "num_tokens": 7.0,
        "num_decode_steps": 4.0,
        "num_cached_tokens": 4 * 5 + 2 * 6 + 5.5,
        "num_prefill_tokens": 5.0,
        "busy_s": 2.0,
    }
    assert row["engine/hybrid/num_tokens"] == 2.0 and row["engine/hybrid/busy_s"] == 0.5
    busy_s = {ReplicaKind.STANDALONE: 3.0, ReplicaKind.HYBRID: 0.5}
    row = meter.close()
    assert row["engine/standalone/busy_s"] == 1.0
    assert sum(row.values()) == 1.0, "everything else is 0 again"


def test_without_a_clock_nothing_is_busy() -> None:
    assert set(EngineMeter().close().values()) == {0.0}


def test_cpu_time_counts_from_window_to_window() -> None:
    meter, cpu_s = EngineMeter(), 7.0
    meter.watch_cpu(lambda: cpu_s, 2)
    cpu_s = 7.5
    row = meter.close()
    assert (row["perf/control_cpu_s"], row["perf/num_shared_cores"]) == (0.5, 2.0)
    cpu_s = 9.5
    assert meter.close()["perf/control_cpu_s"] == 2.0
