"""The control process on the devices' own cores: who is held up, and for how long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from swingshift.core.types import DeviceState
from swingshift.observe.spans import STATES, Lane
from swingshift.sim.cores import SharedCores
from swingshift.sim.crowding import crowded_s
from swingshift.sim.decoding import DecodeBatch, DecodeCost
from swingshift.sim.loop import run_virtual
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.world import WorldConfig, simulate


@dataclass
class FakeWorker:
    num_cores: int
    held_up_s: float = 0.0

    def hold_up(self, seconds: float) -> None:
        self.held_up_s += seconds


@pytest.mark.parametrize(
    ("occupied", "expected"),
    [((1, 1), (0.2, 0.2)), ((1, 0), (0.0, 0.0)), ((2, 0), (0.2, 0.0)), ((0, 0), (0.0, 0.0))],
)
def test_answers_hold_devices_up_while_no_core_is_free(
    occupied: tuple[int, int], expected: tuple[float, float]
) -> None:
    """Two cores, 0.2 s an answer: two answers at once take 0.2 s of either core."""
    workers = [FakeWorker(num_cores) for num_cores in occupied]

    async def main() -> float:
        cores = SharedCores(2, 0.2, lambda: workers)
        cores.answered()
        cores.answered()
        assert not any(worker.held_up_s for worker in workers), "not before whoever answers is done"
        await asyncio.sleep(1.0)
        return cores.total_s

    assert run_virtual(main()) == pytest.approx(0.4)
    assert [worker.held_up_s for worker in workers] == pytest.approx(expected)


def test_a_batch_that_is_held_up_ends_so_much_later() -> None:
    batch: DecodeBatch[str] = DecodeBatch(DecodeCost(0.1, per_prefill_token_s=0.01))
    batch.join("a", 20, 10, 20)
    batch.held_up_s += 0.5
    assert batch.seconds_to_next_end() == pytest.approx(0.5 + 0.2 + 10 * 0.1)
    batch.advance(0.6)
    assert batch.steps == 0.0, "half a second of nothing, then prefill"
    batch.advance(0.3)
    assert batch.steps == pytest.approx(2.0)
    assert batch.seconds_to_next_end() == pytest.approx(0.8)


RUN = WorldConfig(
    lend=False,
    ppo_mini_batch_size=2,
    trigger_parameter_sync_step=1,
    staleness_threshold=0.0,
    num_responses=1,
    num_prompts=4,
    replica_cost=ReplicaCost(step_base_s=0.01, abort_s=0.0, kv_cache_s=0.0),
    trainer_cost=TrainerCost(per_group_s=0.2, sync_standalone_s=0.1),
)


def test_a_run_that_leaves_a_core_free_pays_nothing() -> None:
    """Without staleness generating and training take turns, so that of two cores one is always free."""
    shared = replace(RUN, shared_cores=2, control_per_request_s=0.05)
    world = simulate(shared)
    assert world.wall_s == pytest.approx(simulate(RUN).wall_s)
    assert sum(row["perf/control_cpu_s"] for row in world.rows) == pytest.approx(0.05 * 4)
    assert {row["perf/num_shared_cores"] for row in world.rows} == {2.0}


def uneven_lengths(request_id: str, index: int) -> int:
    """40, 50, 40, 50 …"""
    return 40 + 10 * (int(request_id) % 2)


def test_on_a_single_core_every_answer_costs_its_time() -> None:
    """The groups of a cycle run together; when the second is answered nobody computes any more."""
    plain = replace(RUN, lengths=uneven_lengths, concurrent_samples_per_replica=2)
    shared = replace(plain, shared_cores=1, control_per_request_s=0.05)
    # In each of two cycles the first answer holds up the second response.
    assert simulate(shared).wall_s == pytest.approx(simulate(plain).wall_s + 2 * 0.05)


def test_training_is_held_up_too() -> None:
    plain = replace(RUN, lengths=uneven_lengths, staleness_threshold=1.0, num_prompts=8)
    shared = replace(plain, shared_cores=2, control_per_request_s=0.05)
    slow, fast = simulate(shared), simulate(plain)
    assert slow.wall_s > fast.wall_s
    trained = [sum(row["timing_s/update_actor"] for row in world.rows) for world in (slow, fast)]
    assert trained[1] == pytest.approx(8 * 0.2) and trained[0] > trained[1]


# --- read back from lanes -----------------------------------------------------------------------------------------


def lane(device: str, *spans: tuple[DeviceState, float, float]) -> Lane:
    states, starts, ends = zip(*spans, strict=True)
    indices = np.array([STATES.index(state) for state in states], dtype=np.int8)
    return Lane(device, np.array(starts), np.array(ends), indices)


def test_crowded_seconds_by_hand() -> None:
    """Both compute from 1 to 2 (rollout beside training) and from 4 to 6 (rollout twice); cycles end at 5 and 8."""
    rollout, train, idle = DeviceState.ROLLOUT, DeviceState.TRAIN, DeviceState.IDLE
    lanes = [
        lane("standalone-0", (rollout, 0.0, 2.0), (idle, 2.0, 4.0), (rollout, 4.0, 8.0)),
        lane("hybrid-0", (idle, 0.0, 1.0), (train, 1.0, 3.0), (rollout, 3.5, 6.0)),
    ]
    found = crowded_s(lanes, 2, np.array([5.0, 8.0]))
    assert {name: column.tolist() for name, column in found.items()} == {
        "standalone": [2.0, 1.0],
        "hybrid": [1.0, 1.0],
        "training": [1.0, 0.0],
    }
    alone = crowded_s(lanes, 1, np.array([8.0]))
    assert {name: column.tolist() for name, column in alone.items()} == {
        "standalone": [6.0],
        "hybrid": [2.5],
        "training": [2.0],
    }
    assert all(not column.any() for column in crowded_s([], 0, np.array([8.0])).values())
