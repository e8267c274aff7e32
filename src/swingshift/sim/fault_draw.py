"""Draws a soak case from its seed: mode, policy, sizes, costs, and the faults it meets.

The same seed draws the same case on every machine. A third of the cases meets one fault, so that nothing else hides
what it does; some meet none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from swingshift.core.routing import STRATEGIES
from swingshift.sim.fault_plan import Fault, FaultKind, FaultPlan
from swingshift.sim.soak_run import SoakCase
from swingshift.sim.soak_world import CALL_TIMEOUT_S, RANDOM, TRAIN_TIMEOUT_S, Mode, SoakWorld

SHORT_S = (0.0005, 0.02, 0.3)
LONG_S = (CALL_TIMEOUT_S + 0.5, CALL_TIMEOUT_S * 2)
"""Beyond the deadline of a call."""
FOREVER = float("inf")

_WAYS_TO_FAIL = (FaultKind.ERROR, FaultKind.LOST, FaultKind.HANG, FaultKind.DELAY, FaultKind.LATE, FaultKind.FREEZE)
_AT_WORKERS = (FaultKind.ERROR, FaultKind.DELAY, FaultKind.HANG)
_WAYS_TO_DIE = (FaultKind.DIE, FaultKind.DIE_AFTER)
REPLICA_VERBS = (
    "generate",
    "generate",
    "generate",
    "abort",
    "abort_requests",
    "resume_generation",
    "release_kv_cache",
    "resume_kv_cache",
    "write_weights",
    "health",
)
HYBRID_VERBS = ("sleep", "wake_up")
TRAINER_VERBS = ("train", "offload", "onload", "publish", "save")


def draw_case(seed: int) -> SoakCase:
    rng = random.Random(seed)
    world = draw_world(rng, seed)
    return SoakCase(seed, world, draw_plan(rng, world))


def draw_world(rng: random.Random, seed: int) -> SoakWorld:
    mode = rng.choice(list(Mode))
    partial_rollout = mode.in_steps or rng.random() < 0.8
    return SoakWorld(
        mode=mode,
        num_standalone=rng.randint(1, 3),
        num_hybrid=rng.randint(1, 3),
        devices_per_replica=rng.choice((1, 1, 1, 2)),
        num_prompts=rng.randint(0, 24),
        ppo_mini_batch_size=rng.randint(1, 4),
        require_batches=rng.choice((1, 1, 2)),
        num_collections=rng.randint(1, 3),
        staleness_threshold=rng.choice((0.0, 0.1, 0.5, 1.0, 2.0)),
        concurrent_samples_per_replica=rng.randint(1, 6),
        num_responses=rng.randint(1, 3),
        max_tokens=rng.choice((1, 20, 60)),
        median_length=rng.choice((1, 10, 30)),
        length_sigma=rng.choice((0.0, 0.7, 1.2)),
        num_turns=rng.choice((1, 1, 1, 3)),
        partial_rollout=partial_rollout,
        release_kv_cache=rng.random() < 0.7,
        kv_capacity_tokens=rng.choice((None, None, 40, 200)),
        max_num_seqs=rng.choice((1, 4, 8)),
        routing=rng.choice(("least_inflight", "least_inflight", *sorted(STRATEGIES))),
        policy=rng.choice(("default", "default", "fixed_ratio", "static_fully_async", RANDOM, RANDOM)),
        deactivate_ratio=rng.choice((0.02, 0.1, 0.3, 0.6, 1.0)),
        enable_rebalance=rng.random() < 0.7,
        answer_jitter_s=rng.choice((0.0, 0.0, 0.05, 0.5)),
        verb_s=rng.choice((0.0, 0.01, 0.2)),
        train_per_group_s=rng.choice((0.0, 0.05, 0.5, 3.0)),
        reward_s=rng.choice((0.0, 0.0, 0.1)),
        save_s=rng.choice((0.0, 0.1, 2.0)),
        has_restarts=rng.random() < 0.4,
        max_restarts=rng.choice((1, 3)),
        max_sample_retries=rng.randint(0, 2),
        max_failed_ratio=rng.choice((0.1, 0.5, 1.0)),
        save_freq=rng.choice((-1, 1, 1, 2)),
        test_freq=rng.choice((-1, -1, 1, 2)),
        num_warmup_batches=rng.choice((1, 1, 2)),
        max_off_policy_threshold=rng.choice((None, 1, 2, 8)),
        waits_for_old=rng.random() < 0.3,
        is_filtered=rng.random() < 0.2,
        enable_switch=rng.random() < 0.8,
        seed=seed,
    )


def draw_plan(rng: random.Random, world: SoakWorld) -> FaultPlan:
    num_faults = rng.choice((0, 1, 1, 1, 2, 2, 3, 4))
    return tuple(_draw_fault(rng, world) for _ in range(num_faults))


def _draw_fault(rng: random.Random, world: SoakWorld) -> Fault:
    """Half of them at replicas' calls, where most of what is called can fail."""
    draw = rng.random()
    if draw < 0.5:
        return _replica_fault(rng, world)
    if draw < 0.66:
        return _trainer_fault(rng)
    if draw < 0.74:
        return _call_fault(rng, "reward.score", _AT_WORKERS)
    if draw < 0.76:
        return Fault("prompts.next", FaultKind.ERROR, rng.randint(1, 12))
    if draw < 0.80:
        return _call_fault(rng, "store.save", (*_AT_WORKERS, FaultKind.LOST))
    if draw < 0.83:
        return _call_fault(rng, "starter.restart", _AT_WORKERS)
    return _process_fault(rng, world)


def _replica_fault(rng: random.Random, world: SoakWorld) -> Fault:
    name = rng.choice(replica_names(world))
    is_hybrid = name.startswith("hybrid")
    verb = rng.choice((*REPLICA_VERBS, *HYBRID_VERBS, *HYBRID_VERBS) if is_hybrid else REPLICA_VERBS)
    kinds = [*_WAYS_TO_FAIL, *_WAYS_TO_DIE]
    if verb == "wake_up":
        kinds += [FaultKind.OOM, FaultKind.OOM]
    if verb == "generate":
        kinds.append(FaultKind.REFUSE)
    return _call_fault(rng, f"{name}.{verb}", kinds)


def _trainer_fault(rng: random.Random) -> Fault:
    verb = rng.choice(("train", *TRAINER_VERBS))
    if verb != "train":
        return _call_fault(rng, f"trainer.{verb}", (*_WAYS_TO_FAIL, *_WAYS_TO_DIE))
    # Training that raises has not happened: that is what the port promises. It may take too long, though.
    kinds = [kind for kind in (*_WAYS_TO_FAIL, *_WAYS_TO_DIE) if kind is not FaultKind.LOST]
    kinds += [FaultKind.DELAY, FaultKind.LATE]
    return _call_fault(rng, "trainer.train", kinds, (TRAIN_TIMEOUT_S + 1.0, TRAIN_TIMEOUT_S * 1.5))


def _call_fault(
    rng: random.Random, where: str, kinds: Sequence[FaultKind], long_s: Sequence[float] = LONG_S
) -> Fault:
    kind = rng.choice(kinds)
    seconds = 0.0
    if kind in (FaultKind.DELAY, FaultKind.LATE):
        seconds = rng.choice((*SHORT_S, *long_s))
    elif kind is FaultKind.FREEZE:
        seconds = rng.choice((*SHORT_S, *LONG_S, FOREVER))
    elif kind is FaultKind.DIE:
        seconds = rng.choice((0.0, 0.0, 0.001, 0.05))
    nth = min(rng.randint(1, 4), rng.randint(1, 8))
    return Fault(where, kind, nth, seconds)


def _process_fault(rng: random.Random, world: SoakWorld) -> Fault:
    """At a moment, whatever the process is doing then."""
    seconds = rng.choice((0.0, rng.uniform(0.0, 1.0), rng.uniform(0.0, 5.0)))
    session = rng.choice((1, 1, 1, 2))
    draw = rng.random()
    if draw < 0.35:
        return Fault("run", FaultKind.CRASH, session, seconds)
    if draw < 0.5:
        return Fault("run", rng.choice((FaultKind.STOP, FaultKind.STOP, FaultKind.CANCEL)), session, seconds)
    name = rng.choice((*replica_names(world), "trainer"))
    if draw < 0.8:
        return Fault(name, FaultKind.DIE, session, seconds)
    return Fault(name, FaultKind.FREEZE, session, seconds, rng.choice((*SHORT_S, *LONG_S, FOREVER)))


def replica_names(world: SoakWorld) -> list[str]:
    """Of those that are there."""
    standalone = world.num_standalone if world.mode.has_standalone else 0
    hybrid = world.num_hybrid if world.lends else 0
    return [*(f"standalone-{i}" for i in range(standalone)), *(f"hybrid-{i}" for i in range(hybrid))]
