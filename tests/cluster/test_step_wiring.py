"""From configuration to training in global steps: every setting arrives where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swingshift.cluster.step_wiring import step_mode
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.errors import ConfigError, ReplayBufferError
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_policy import EveryStepPolicy
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy

MODE = "trainer.v1.trainer_mode"
SWITCH = "trainer.v1.separate_async.hybrid_rollout"
BUFFER = "trainer.v1.replay_buffer"

BUFFERS = """
class Whole:
    def __init__(self, buffer): self.buffer = buffer
    def get_sampleable_count(self, global_steps): return self.buffer.get_sampleable_count(global_steps)
    async def wait_for_sampleable(self, global_steps, target_count): ...
    async def sample(self, global_steps, batch_size): ...

class Half:
    def __init__(self, buffer): self.buffer = buffer
    async def sample(self, global_steps, batch_size): ...

class Late(Whole):
    def __init__(self, buffer): self.size = {}["size"]
"""


def demo(*overrides: str) -> SwingshiftConfig:
    return load_config([DEFAULT_FILE], overrides)


def test_separate_async() -> None:
    mode = step_mode(
        demo(
            f"{MODE}=separate_async",
            "trainer.v1.parameter_sync_step=2",
            "trainer.v1.num_warmup_batches=3",
            "trainer.total_training_steps=7",
            "trainer.n_gpus_per_node=2",
            f"{SWITCH}.enable_switch=true",
            f"{SWITCH}.switch_threshold_ratio=0.75",
            f"{SWITCH}.benefit_margin=1",
            f"{BUFFER}.max_off_policy_threshold=4",
            f"{BUFFER}.max_off_policy_strategy=wait",
            "algorithm.filter_groups.enable=true",
            "algorithm.filter_groups.metric=response_length",
            "algorithm.filter_groups.max_num_gen_batches=5",
        )
    )
    assert mode.settings == StepSettings(16, 2, num_warmup_batches=3, total_training_steps=7, needs_warmup=True)
    config = HybridRolloutSwitchConfig(enable_switch=True, switch_threshold_ratio=0.75, benefit_margin=1.0)
    assert mode.policy == StepSwitchPolicy(config, 16, 2, standalone_share=1 / 3)
    assert mode.rules == StoreRules(4, OffPolicyStrategy.WAIT, "response_length")
    assert mode.max_refill_batches == 5


def test_the_defaults() -> None:
    mode = step_mode(demo(f"{MODE}=separate_async"))
    assert mode.settings == StepSettings(32, 4, num_warmup_batches=1, needs_warmup=True)
    assert not mode.policy.lends and mode.rules == StoreRules(8, OffPolicyStrategy.DROP, None)
    buffer: Any = object()
    assert mode.wrap_buffer(buffer) is buffer


@pytest.mark.parametrize(("name", "warmup"), [("colocate_async", 1), ("sync", 0)])
def test_modes_that_take_turns(name: str, warmup: int) -> None:
    mode = step_mode(demo(f"{MODE}={name}", "rollout.nnodes=0"))
    assert mode.policy == EveryStepPolicy(32)
    assert mode.settings == StepSettings(32, 4, num_warmup_batches=warmup, needs_warmup=False)


def test_a_replay_buffer_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "night_buffers.py").write_text(BUFFERS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = f"{BUFFER}.path=night_buffers"
    ours: Any = object()
    wrapped: Any = step_mode(demo(f"{MODE}=separate_async", f"{path}:Whole")).wrap_buffer(ours)
    assert type(wrapped).__name__ == "Whole" and wrapped.buffer is ours
    needle = r"path=night_buffers:Half: the class has no method get_sampleable_count and no wait_for_sampleable; impl"
    with pytest.raises(ReplayBufferError, match=needle):
        step_mode(demo(f"{MODE}=separate_async", f"{path}:Half"))
    with pytest.raises(TypeError):
        step_mode(demo(f"{MODE}=separate_async", f"{path}:Half"))
    for missing, why in (("night_buffers:None_such", "has no 'None_such'"), ("no_such_module:Buffer", "importable")):
        with pytest.raises(ConfigError, match=rf"path={missing}: .*{why}.*module:Class"):
            step_mode(demo(f"{MODE}=separate_async", f"{BUFFER}.path={missing}"))
    with pytest.raises(ConfigError, match=r"path=night_buffers:Late: .* KeyError: 'size' \(night_buffers.py:13\)"):
        step_mode(demo(f"{MODE}=separate_async", f"{path}:Late")).wrap_buffer(ours)
