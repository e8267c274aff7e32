"""Costs from first principles, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.errors import ConfigError
from swingshift.sim.hardware import (
    A100,
    DEVICES,
    H20,
    H100,
    DeviceSpec,
    Efficiency,
    ModelSpec,
    kv_capacity_tokens,
    replica_cost,
    trainer_cost,
)
from swingshift.sim.tokens import SimLogProbs, SimTokens

DENSE = ModelSpec(num_params=8e9, num_active_params=8e9, kv_bytes_per_token=131_072)
ROUND = DeviceSpec(
    "round", flops=100e12, memory_bandwidth=2e12, memory_bytes=40e9, host_bandwidth=10e9, link_bandwidth=20e9
)
PERFECT = Efficiency(1.0, 1.0, 1.0, 1.0, 0.0)


def test_a_replica_by_hand() -> None:
    """16 GB of weights on two devices: 4 TB/s and 200 TFLOP/s together."""
    cost = replica_cost(DENSE, ROUND, devices_per_replica=2, efficiency=PERFECT, memory_fraction=0.9, max_num_seqs=7)
    assert cost.step_base_s == pytest.approx(16e9 / 4e12)
    assert cost.step_per_sequence_s == cost.prefill_per_token_s == pytest.approx(16e9 / 200e12)
    assert cost.step_per_kv_token_s == pytest.approx(131_072 / 4e12)
    assert cost.kv_capacity_tokens == int((2 * 40e9 * 0.9 - 16e9) / 131_072)
    assert cost.sleep_s == cost.wake_s == pytest.approx(16e9 / 20e9)
    assert cost.max_num_seqs == 7


def test_efficiencies_slow_down_what_they_name() -> None:
    perfect = replica_cost(DENSE, ROUND, efficiency=PERFECT)
    half = replica_cost(DENSE, ROUND, efficiency=Efficiency(0.5, 0.25, 0.2, 1.0, 0.003))
    assert half.step_base_s == pytest.approx(0.003 + 2 * perfect.step_base_s)
    assert half.step_per_kv_token_s == pytest.approx(2 * perfect.step_per_kv_token_s)
    assert half.step_per_sequence_s == pytest.approx(4 * perfect.step_per_sequence_s)
    assert half.prefill_per_token_s == pytest.approx(5 * perfect.prefill_per_token_s)


def test_a_trainer_by_hand() -> None:
    """Four devices: 400 TFLOP/s; 6 + 2 + 2 operations a parameter and token."""
    cost = trainer_cost(DENSE, ROUND, num_devices=4, devices_per_replica=2, efficiency=PERFECT, ref=True, base_s=1.0)
    sample = Sample(SimTokens(100, 0, 100), SimLogProbs(100), ((0, 100),), FinishReason.STOP)  # type: ignore[arg-type]
    group = SampleGroup(0, Prompt("p", (0,) * 50), (sample, sample), 0)
    tokens = 3 * 2 * (100 + 50)
    seconds = cost.timings_s([group] * 3)
    assert list(seconds) == ["old_log_prob", "ref", "update_actor"], "in the order in which they run"
    assert seconds["old_log_prob"] == seconds["ref"] == pytest.approx(2 * 8e9 * tokens / 400e12)
    assert seconds["update_actor"] == pytest.approx(1.0 + 6 * 8e9 * tokens / 400e12)
    assert cost.offload_s == cost.onload_s == pytest.approx(8e9 * 12 / 40e9)
    assert cost.publish_s == pytest.approx(16e9 / 80e9)
    assert cost.sync_standalone_s == pytest.approx(16e9 / 40e9)
    assert cost.sync_hybrid_s == pytest.approx(2 * 16e9 / 4e12)


def test_experts_cost_memory_but_not_operations() -> None:
    sparse = replace(DENSE, num_active_params=1e9)
    ours, dense = (
        replica_cost(sparse, ROUND, devices_per_replica=2),
        replica_cost(DENSE, ROUND, devices_per_replica=2),
    )
    assert ours.step_base_s == dense.step_base_s
    assert ours.step_per_sequence_s == pytest.approx(dense.step_per_sequence_s / 8)


def test_more_devices_make_everything_faster() -> None:
    one, four = (replica_cost(DENSE, H100, devices_per_replica=n) for n in (1, 4))
    for key in ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s", "prefill_per_token_s", "wake_s"):
        assert getattr(four, key) < getattr(one, key)
    assert four.kv_capacity_tokens > 4 * one.kv_capacity_tokens  # type: ignore[operator]


def test_built_in_devices() -> None:
    assert DEVICES == {"H20": H20, "H100": H100, "A100": A100}
    assert (
        H20.flops < A100.flops < H100.flops and A100.memory_bandwidth < H100.memory_bandwidth < H20.memory_bandwidth
    )


def test_impossible_figures_are_named() -> None:
    with pytest.raises(ConfigError, match=r"devices_per_replica=1: 160 GB.*more devices"):
        replica_cost(ModelSpec(80e9, 80e9, 1e5), H100)
    with pytest.raises(ConfigError, match="num_active_params"):
        ModelSpec(1e9, 2e9, 1e5)
    with pytest.raises(ConfigError, match="flops=0"):
        replace(H20, flops=0.0)
    with pytest.raises(ConfigError, match="train_mfu=2"):
        Efficiency(train_mfu=2.0)
    with pytest.raises(ConfigError, match="step_overhead_s"):
        Efficiency(step_overhead_s=-1.0)
    with pytest.raises(ConfigError, match="memory_fraction"):
        kv_capacity_tokens(DENSE, H100, memory_fraction=1.5)
    with pytest.raises(ConfigError, match="num_devices=0"):
        trainer_cost(DENSE, H100, num_devices=0)
