"""A case in one line, and back; smaller cases that fail the same way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swingshift.sim.fault_draw import draw_case
from swingshift.sim.fault_plan import Fault, FaultKind
from swingshift.sim.shrink import shrink, signature
from swingshift.sim.soak_case_text import from_text, to_text
from swingshift.sim.soak_run import SoakCase
from swingshift.sim.soak_world import Mode, SoakWorld


def test_every_case_comes_back_as_it_was() -> None:
    for seed in range(500):
        case = draw_case(seed)
        assert from_text(to_text(case)) == case


def test_the_text_is_readable_and_names_only_what_differs() -> None:
    plan = (
        Fault("hybrid-0.wake_up", FaultKind.OOM, 2),
        Fault("trainer.train", FaultKind.LATE, 1, 31.0),
        Fault("trainer", FaultKind.FREEZE, 1, 0.5, float("inf")),
        Fault("run", FaultKind.STOP, 2, 2.4),
    )
    case = SoakCase(7, SoakWorld(mode=Mode.SYNC, num_prompts=6, kv_capacity_tokens=40, seed=7), plan)
    assert to_text(case) == (
        "mode=sync,num_prompts=6,kv_capacity_tokens=40,seed=7; hybrid-0.wake_up#2=oom; trainer.train#1=late~31.0; "
        "trainer@0.5/1=freeze~inf; run@2.4/2=stop"
    )


# --- shrinking ----------------------------------------------------------------------------------------------

CULPRIT = Fault("hybrid-0.sleep", FaultKind.HANG, 3)
BIG = SoakCase(
    0,
    SoakWorld(num_standalone=3, num_hybrid=3, num_prompts=24, ppo_mini_batch_size=4, routing="least_tokens"),
    (
        Fault("trainer.train", FaultKind.DELAY, 1, 0.5),
        Fault("reward.score", FaultKind.ERROR, 2),
        CULPRIT,
        Fault("standalone-0", FaultKind.DIE, 1, 0.2),
    ),
)


def needs_culprit_and_seven_prompts(case: SoakCase) -> str:
    """Fails if the culprit is there, at its third call or earlier, and at least seven prompts are."""
    culprits = [f for f in case.plan if f.where == CULPRIT.where and f.nth >= 2]
    return (
        f"session 1: AssertionError: {case.world.num_prompts} lost" if culprits and case.world.num_prompts > 6 else ""
    )


def test_faults_and_sizes_that_do_not_matter_go() -> None:
    smallest, failure = shrink(BIG, needs_culprit_and_seven_prompts)
    assert smallest.plan == (replace(CULPRIT, nth=2),)
    assert smallest.world == SoakWorld(
        num_prompts=7,
        ppo_mini_batch_size=1,
        num_collections=1,
        concurrent_samples_per_replica=1,
        num_responses=1,
        median_length=1,
    )
    assert failure == "session 1: AssertionError: 7 lost"


def test_a_case_that_fails_otherwise_is_not_taken() -> None:
    def fails_in_two_ways(case: SoakCase) -> str:
        if case.world.num_prompts < 10:
            return "session 1: KeyError: something else"
        return "session 1: AssertionError: lost" if case.plan else ""

    smallest, failure = shrink(BIG, fails_in_two_ways)
    assert failure == "session 1: AssertionError: lost"
    assert len(smallest.plan) == 1 and smallest.world.num_prompts >= 10


def test_it_gives_up_after_so_many_runs() -> None:
    runs = 0

    def count(case: SoakCase) -> str:
        nonlocal runs
        runs += 1
        return "session 1: AssertionError: always"

    shrink(BIG, count, most_runs=5)
    assert runs <= 5 + 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("session 1: AssertionError: group 3 is lost", "session 2: AssertionError: group 12 is lost", True),
        ("session 1: AssertionError: busy with ['1', '2']", "session 1: AssertionError: busy with ['7']", True),
        ("session 1: AssertionError: group 3 is lost", "session 1: KeyError: group 3 is lost", False),
        ("session 1: AssertionError: group 3 is lost", "session 1: AssertionError: group 3 is late", False),
    ],
)
def test_failures_are_the_same_if_they_say_the_same_but_for_numbers(one: str, other: str, same: bool) -> None:
    assert (signature(one) == signature(other)) is same
