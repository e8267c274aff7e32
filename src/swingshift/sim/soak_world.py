"""The world of a soak run as plain numbers, so that a seed can draw it and a shrinker make it smaller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.core.types import Prompt, SamplingParams
from swingshift.runtime.ports import RewardFn
from swingshift.runtime.restarts import RestartSettings
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.runtime.validator import Validator
from swingshift.schedule.step_policy import EveryStepPolicy, StepPolicy
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.responses import Lengths
from swingshift.sim.soak_policies import RandomPolicy, RandomStepPolicy
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import BernoulliReward, lognormal_lengths, tool_pauses
from swingshift.sim.world import WorldConfig

CALL_TIMEOUT_S = 5.0
TRAIN_TIMEOUT_S = 30.0
WATCHDOG_TIMEOUT_S = 200.0
HEALTH_CHECK_INTERVAL_S = 20.0
START_TIMEOUT_S = 5.0
REPLICA_WAIT_TIMEOUT_S = 1000.0
LONGEST_RESPONSE = 200
RANDOM = "random"


class Mode(StrEnum):
    """How training proceeds."""

    DYNAMIC = "dynamic"
    STATIC = "static"
    COLOCATED = "colocated"
    SEPARATE_ASYNC = "separate_async"
    COLOCATE_ASYNC = "colocate_async"
    SYNC = "sync"

    @property
    def in_steps(self) -> bool:
        return self in (Mode.SEPARATE_ASYNC, Mode.COLOCATE_ASYNC, Mode.SYNC)

    @property
    def has_standalone(self) -> bool:
        return self in (Mode.DYNAMIC, Mode.STATIC, Mode.SEPARATE_ASYNC)


@dataclass(frozen=True, slots=True)
class SoakWorld:
    """Sizes in groups; what a mode has no use for is ignored."""

    mode: Mode = Mode.DYNAMIC
    num_standalone: int = 1
    num_hybrid: int = 1
    devices_per_replica: int = 1
    num_prompts: int = 16
    ppo_mini_batch_size: int = 2
    require_batches: int = 1
    num_collections: int = 2
    """Per weight sync: ``trigger_parameter_sync_step`` or ``parameter_sync_step``."""
    staleness_threshold: float = 0.5
    concurrent_samples_per_replica: int = 4
    num_responses: int = 2
    max_tokens: int = 60
    median_length: int = 20
    length_sigma: float = 0.7
    num_turns: int = 1
    partial_rollout: bool = True
    release_kv_cache: bool = True
    kv_capacity_tokens: int | None = None
    max_num_seqs: int = 8
    routing: str = "least_inflight"
    policy: str = "default"
    """A registered one of the fully-asynchronous modes; ``random`` answers anything, in ``separate_async`` too."""
    deactivate_ratio: float = 0.6
    enable_rebalance: bool = True
    answer_jitter_s: float = 0.0
    """Answers to requests come up to so much after they were ready, each as it pleases."""
    verb_s: float = 0.01
    """What sleeping, waking, aborting, offloading and publishing take, each."""
    train_per_group_s: float = 0.05
    reward_s: float = 0.0
    save_s: float = 0.0
    """What a checkpoint takes."""
    has_restarts: bool = False
    max_restarts: int = 3
    max_sample_retries: int = 2
    max_failed_ratio: float = 0.5
    save_freq: int = 1
    test_freq: int = -1
    num_validation_prompts: int = 2
    num_warmup_batches: int = 1
    max_off_policy_threshold: int | None = 8
    waits_for_old: bool = False
    is_filtered: bool = False
    enable_switch: bool = True
    seed: int = 0

    @property
    def lends(self) -> bool:
        if self.mode is Mode.SEPARATE_ASYNC:
            return self.enable_switch
        return self.mode is not Mode.STATIC

    @property
    def filters(self) -> bool:
        """Groups of one response would all be of no use."""
        return self.mode.in_steps and self.is_filtered and self.num_responses > 1

    @property
    def collection_size(self) -> int:
        """Groups the trainer takes at once."""
        return self.ppo_mini_batch_size * (1 if self.mode.in_steps else self.require_batches)

    @property
    def warmup_batches(self) -> int:
        return 0 if self.mode is Mode.SYNC else self.num_warmup_batches

    def lengths(self) -> Lengths:
        return lognormal_lengths(self.median_length, self.length_sigma, LONGEST_RESPONSE, self.seed)

    def reward(self) -> RewardFn:
        return BernoulliReward(spread=0.4, seconds=self.reward_s, seed=self.seed)

    def rules(self) -> StoreRules:
        strategy = OffPolicyStrategy.WAIT if self.waits_for_old else OffPolicyStrategy.DROP
        return StoreRules(self.max_off_policy_threshold, strategy, "reward" if self.filters else None)

    def config(self) -> WorldConfig:
        """A fresh world; policies learn, so every session needs one of its own."""
        in_steps = self.mode.in_steps
        return WorldConfig(
            num_standalone=self.num_standalone if self.mode.has_standalone else 0,
            num_hybrid=self.num_hybrid,
            devices_per_replica=self.devices_per_replica,
            lend=self.lends,
            policy="default" if self.policy == RANDOM else self.policy,
            policy_object=RandomPolicy(self.seed) if self.policy == RANDOM and self.lends else None,
            deactivate_ratio=self.deactivate_ratio,
            ppo_mini_batch_size=self.ppo_mini_batch_size,
            require_batches=1 if in_steps else self.require_batches,
            trigger_parameter_sync_step=self.num_collections,
            staleness_threshold=float(self.warmup_batches) if in_steps else self.staleness_threshold,
            concurrent_samples_per_replica=self.concurrent_samples_per_replica,
            num_responses=self.num_responses,
            max_tokens=self.max_tokens,
            num_prompts=self.num_prompts,
            lengths=self.lengths(),
            pauses=tool_pauses(self.num_turns, 0.1, seed=self.seed) if self.num_turns > 1 else None,
            seed=self.seed,
            replica_cost=self._replica_cost(),
            trainer_cost=TrainerCost(
                per_group_s=self.train_per_group_s,
                offload_s=self.verb_s,
                onload_s=self.verb_s,
                publish_s=self.verb_s,
                sync_standalone_s=self.verb_s,
                sync_hybrid_s=self.verb_s,
            ),
            reward=self.reward(),
            max_sample_retries=self.max_sample_retries,
            max_failed_ratio=self.max_failed_ratio,
            enable_rebalance=self.enable_rebalance,
            partial_rollout=self.partial_rollout,
            routing=self.routing,
            release_kv_cache=self.release_kv_cache,
            save_freq=self.save_freq,
            test_freq=self.test_freq,
            call_timeout_s=CALL_TIMEOUT_S,
            train_timeout_s=TRAIN_TIMEOUT_S,
            replica_wait_timeout_s=REPLICA_WAIT_TIMEOUT_S,
            restart_s=1.0 if self.has_restarts else None,
            restarts=RestartSettings(self.max_restarts, start_timeout_s=START_TIMEOUT_S),
            health_check_interval_s=HEALTH_CHECK_INTERVAL_S,
            watchdog_timeout_s=WATCHDOG_TIMEOUT_S,
            step_mode=self._step_mode() if in_steps else None,
        )

    def validator(self, reward: RewardFn) -> Validator:
        prompts = [Prompt(f"val-{i}", (0,) * 8) for i in range(self.num_validation_prompts)]
        return Validator(prompts, reward, SamplingParams(max_tokens=self.max_tokens), 1, max_in_flight=2)

    def _replica_cost(self) -> ReplicaCost:
        return ReplicaCost(
            step_per_sequence_s=0.001,
            max_num_seqs=self.max_num_seqs,
            kv_capacity_tokens=self.kv_capacity_tokens,
            abort_s=self.verb_s / 10,
            sleep_s=self.verb_s,
            wake_s=self.verb_s,
            kv_cache_s=self.verb_s / 10,
        )

    def _step_mode(self) -> StepMode:
        batch = self.ppo_mini_batch_size * self.num_collections
        policy: StepPolicy = EveryStepPolicy(batch)
        if self.mode is Mode.SEPARATE_ASYNC and self.policy == RANDOM and self.lends:
            policy = RandomStepPolicy(self.seed, batch)
        elif self.mode is Mode.SEPARATE_ASYNC:
            policy = StepSwitchPolicy(
                config=HybridRolloutSwitchConfig(enable_switch=self.enable_switch),
                train_batch_size=batch,
                parameter_sync_step=self.num_collections,
                standalone_share=self.num_standalone / (self.num_standalone + self.num_hybrid),
            )
        settings = StepSettings(
            train_batch_size=batch,
            parameter_sync_step=self.num_collections,
            num_warmup_batches=self.warmup_batches,
            needs_warmup=self.mode is Mode.SEPARATE_ASYNC,
        )
        return StepMode(settings, policy, self.rules())
