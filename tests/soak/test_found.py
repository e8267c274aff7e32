"""What the soak has found in the control plane, each as the smallest case that showed it."""

from __future__ import annotations

import pytest

from swingshift.sim.soak_case_text import from_text
from swingshift.sim.soak_run import run_case

ONE_BY_ONE = (
    "ppo_mini_batch_size=1,num_collections=1,concurrent_samples_per_replica=1,num_responses=1,median_length=1"
)

FOUND = {
    "an engine's error under a validation prompt ended the run": (
        f"mode=separate_async,num_prompts=2,{ONE_BY_ONE},test_freq=2,seed=64; hybrid-0.generate#2=error",
        ["finished"],
    ),
    "a validation waited for replicas that could not come: the only one died when it was woken": (
        f"mode=sync,num_prompts=1,{ONE_BY_ONE},verb_s=0.2,train_per_group_s=0.5,test_freq=1,seed=42; "
        "hybrid-0@2.7602/1=die",
        ["finished"],
    ),
    "a validation waited for replicas that could not come: no memory for the only one": (
        f"mode=sync,num_prompts=1,{ONE_BY_ONE},test_freq=1,seed=241; hybrid-0.wake_up#3=oom",
        ["finished"],
    ),
    "a validation waited for replicas that could not come: they died one after the other": (
        f"mode=sync,num_hybrid=2,num_prompts=1,{ONE_BY_ONE},verb_s=0.2,test_freq=1,seed=2232; "
        "hybrid-1.write_weights#2=die~0.05; hybrid-0.resume_generation#1=lost",
        ["finished"],
    ),
    "the last save had no deadline: a store that hung held the run up for ever": (
        f"mode=separate_async,num_prompts=1,{ONE_BY_ONE},save_freq=-1,seed=175; store.save#1=hang",
        ["CheckpointError", "finished"],
    ),
    "training beyond its deadline was saved as not done, and was done again after a resume": (
        f"mode=static,num_prompts=4,{ONE_BY_ONE},seed=4; trainer.train#2=late~34.0",
        ["TrainerError", "finished"],
    ),
    "what a resumed run had submitted before counted as submitted after": (
        "mode=static,num_prompts=3,ppo_mini_batch_size=1,concurrent_samples_per_replica=2,num_responses=1,"
        "median_length=1,seed=78; reward.score#1=hang",
        ["StalledError", "finished"],
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_stays_mended(what: str) -> None:
    text, outcomes = FOUND[what]
    case = from_text(text)
    result = run_case(case)
    assert result.failure == ""
    assert result.outcomes == outcomes
    assert {fault for _, fault in result.fired} == set(case.plan), "all of it happened"
