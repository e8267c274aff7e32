"""Where the devices' time went, by hand."""

import pytest

from swingshift.core.device_time import DeviceTimes
from swingshift.core.metric_table import METRICS
from swingshift.core.types import DeviceState as State


def seconds(**states: float) -> dict[State, float]:
    return {state: states.get(state.value, 0.0) for state in State}


def test_two_cycles_of_two_trainers_and_one_rollout_device_by_hand() -> None:
    times = DeviceTimes(2, 1)
    now = {
        "hybrid-0": seconds(train=4.0, rollout=3.0, switching=1.0, idle=2.0),
        "hybrid-1": seconds(train=4.0, rollout=2.0, switching=1.0, idle=3.0),
        "standalone-0": seconds(rollout=9.0, syncing=1.0),
    }
    times.read = lambda: now
    row = times.close()
    assert row == pytest.approx(
        {
            "device/rollout_s": 14.0, "device/train_s": 8.0, "device/switching_s": 2.0, "device/syncing_s": 1.0,
            "device/idle_s": 5.0,
            "device/rollout_ratio": 14 / 30, "device/train_ratio": 8 / 30, "device/switching_ratio": 2 / 30,
            "device/syncing_ratio": 1 / 30, "device/idle_ratio": 5 / 30,
            # Training alone needs 8/2 s of the trainers; all the work needs 22/3 s of all devices.
            "schedule/bound_s": 22 / 3, "schedule/elapsed_s": 10.0, "schedule/efficiency": 22 / 30,
        }
    )  # fmt: skip
    now = {
        "hybrid-0": seconds(train=14.0, rollout=3.0, switching=1.0, idle=2.0),
        "hybrid-1": seconds(train=14.0, rollout=2.0, switching=1.0, idle=3.0),
        "standalone-0": seconds(rollout=9.0, syncing=1.0, idle=10.0),
    }
    row = times.close()
    assert row["device/train_s"] == 20.0 and row["device/idle_s"] == 10.0 and row["device/rollout_s"] == 0.0
    assert row["device/train_ratio"] == pytest.approx(2 / 3)
    # Now training is what binds: 28/2 of 20 s.
    assert row["schedule/bound_s"] == 14.0 and row["schedule/efficiency"] == pytest.approx(0.7)


def test_the_shares_of_every_cycle_of_a_run_sum_to_1_and_efficiency_is_at_most_1() -> None:
    from swingshift.sim.world import WorldConfig, simulate

    for config in (WorldConfig(), WorldConfig(lend=False), WorldConfig(num_standalone=0, num_hybrid=2)):
        rows = simulate(config).rows
        for row in rows:
            assert sum(row[f"device/{state.value}_ratio"] for state in State) == pytest.approx(1.0)
            assert 0.0 < row["schedule/efficiency"] <= 1.0 + 1e-9
        assert rows[-1]["schedule/elapsed_s"] == pytest.approx(rows[-1]["training/time_s"])


def test_nothing_happened_yet() -> None:
    row = DeviceTimes(1, 1).close()
    assert set(row.values()) == {0.0} and row.keys() <= METRICS.keys()
