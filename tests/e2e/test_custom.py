"""What users bring: their own policy, data and reward."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

MY_TASK = Path(__file__).parents[2] / "examples" / "my_task"

# The specification's example of a custom policy, with another import line and a note of each call.
POLICY = '''
from swingshift.schedule import DynamicScheduleContext, DynamicSchedulePolicyBase, register_policy


@register_policy("my_policy")
class MyDynamicSchedulePolicy(DynamicSchedulePolicyBase):

    def __init__(self, deactivate_ratio: float = 0.5, only_hybrid: bool = False):
        self.deactivate_ratio = deactivate_ratio
        self.only_hybrid = only_hybrid

    def should_deactivate(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
    ) -> bool:
        """Return True to deactivate hybrid replicas this step."""
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return minimum buffered-sample count before deactivation proceeds."""
        return int(ctx.required_samples * ctx.trigger_parameter_sync_step * self.deactivate_ratio)

    def should_activate_after_step(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
    ) -> bool:
        """Return True to re-activate after weight sync."""
        return ctx.total_generated_samples < ctx.expected_samples + ctx.buffer_samples

    # Optional: override to update internal state after each step
    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        with open("updates.txt", "a") as file:
            print(global_steps, file=file)

    # Optional: override to customise request redistribution after activation
    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass
'''


def test_the_custom_policy_of_the_specification(launch, tmp_path):
    (tmp_path / "my_policy.py").write_text(POLICY)
    run = launch(
        "async_training.dynamic_schedule_policy=my_policy:MyDynamicSchedulePolicy",
        "async_training.dynamic_schedule_deactivate_ratio=0.5",
        "rollout.total_rollout_steps=null",
        "data.size=14",
    ).expect(0)
    assert run.stderr == ""
    assert run.summary["num_consumed_groups"] == 14 and run.summary["num_activations"] > 0
    assert (tmp_path / "updates.txt").read_text().split() == ["1", "2", "3", "4"]


def test_my_task_as_its_readme_shows_it(launch_own, tmp_path):
    """The command of the README on our own local Ray, with fewer rows and a smaller model."""
    command = (MY_TASK / "README.md").read_text().partition("```\n")[2].partition("```")[0]
    words = [word for word in command.replace("\\\n", " ").split() if "=" in word]
    assert "reward.path=examples/my_task/reward.py:reward" in words
    rows = (MY_TASK / "data.jsonl").read_text().splitlines()[:40]
    (tmp_path / "examples" / "my_task").mkdir(parents=True)
    (tmp_path / "examples" / "my_task" / "data.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (tmp_path / "examples" / "my_task" / "reward.py").write_text((MY_TASK / "reward.py").read_text())
    smaller = ["trainer.total_epochs=1", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "trainer.seed=1"]
    tiny = ["actor_rollout_ref.model.path=builtin:tiny", "actor_rollout_ref.model.num_layers=1"]
    # Nothing of the tests' own small.yaml but the run directory.
    run = launch_own(*words, *smaller, *tiny, files=[]).expect(0)
    assert run.summary["num_consumed_groups"] == 40
    prompts = {json.loads(row)["prompt"] for row in rows}
    assert {sample["prompt"] for sample in run.samples()} <= prompts
    assert run.summary["reward_last_tenth"] > 0
    assert (run.folder / "init_model" / "tokenizer.json").is_file()
