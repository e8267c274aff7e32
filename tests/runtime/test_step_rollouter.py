"""The rollouter of global steps: prompts that wait, start in order, and come back from a checkpoint."""

from __future__ import annotations

from replay_bench import bench, group, ids, run

from swingshift.core.buffer import GroupPhase
from swingshift.core.types import (
    Prompt,
)
from swingshift.runtime.group_runner import PendingPrompt
from swingshift.runtime.step_rollouter import StepRollouter


def test_prompts_wait_until_there_is_room_and_start_in_order() -> None:
    async def test() -> None:
        async with bench(per_replica=2) as b:
            b.submit(2, 1)
            b.submit(3, 2)
            phases = await b.phases()
            assert list(phases.values()) == [GroupPhase.RUNNING] * 2 + [GroupPhase.PENDING] * 3
            assert b.rollouter.num_outstanding == 5 and b.rollouter.num_remaining == 98
            b.engine.finish(1)
            await b.phases()
            assert b.engine.started == [0, 1, 2]
            b.replicas[0] = 2
            b.rollouter.capacity_changed()
            await b.phases()
            assert b.engine.started == [0, 1, 2, 3, 4]

    run(test)


def test_without_a_replica_nothing_starts() -> None:
    async def test() -> None:
        async with bench(replicas=0) as b:
            b.submit(3)
            assert set((await b.phases()).values()) == {GroupPhase.PENDING}
            b.replicas[0] = 1
            b.rollouter.capacity_changed()
            assert set((await b.phases()).values()) == {GroupPhase.RUNNING}

    run(test)


def test_what_is_restored_keeps_its_groups_its_ages_and_its_order() -> None:
    """Submitted at steps 3, 2 and 1; two finished, two to be asked again, one of them before it knew its step."""

    def prepare(rollouter: StepRollouter) -> None:
        rollouter.version = 4
        rollouter.restore(
            queued=[group(7, submit_version=2), group(4, submit_version=1)],
            resubmit=[
                PendingPrompt(2, Prompt("2", (0,)), 0),
                PendingPrompt(9, Prompt("9", (0,)), None),
            ],
            next_group_id=10,
            num_consumed=5,
            num_failed=1,
            num_evicted=2,
        )

    async def test() -> None:
        async with bench(prepare=prepare) as b:
            store = b.rollouter.store
            assert {i: store.first_step(i) for i in (7, 4, 2, 9)} == {7: 3, 4: 2, 2: 1, 9: 5}
            assert b.rollouter.num_outstanding == 4 and b.rollouter.ledger.num_evicted == 2
            assert b.buffer.get_sampleable_count(5) == 2 and ids(store.finished()) == [4, 7]
            await b.phases()
            assert b.engine.started == [2, 9], "each once"
            assert [p.group_id for p in b.rollouter.pending()] == [2, 9]
            b.submit(1, 5)
            await b.phases()
            assert b.engine.started == [2, 9, 10]
            b.engine.finish(2, 9, 10)
            groups, _ = await b.buffer.sample(5, 5)
            assert ids(groups) == [2, 4, 7, 9, 10]
            assert [g.submit_version for g in groups] == [0, 1, 2, 4, 4]

    run(test)
