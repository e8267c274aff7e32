"""Every number of the configuration at every extreme: it is refused in one line, or all that is computed works."""

from __future__ import annotations

import pytest

from swingshift.config.checks import check_config
from swingshift.config.document import to_yaml
from swingshift.config.keys import Key, all_keys
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.config.memory_plan import Capacity, make_memory_plan
from swingshift.config.memory_plan_model import ModelSizes
from swingshift.config.memory_plan_verdict import judge
from swingshift.config.memory_plan_view import device_table, facts, machine_table, summary, to_record
from swingshift.config.plan import make_plan, plan_rows
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError

NUMBERS = [key for key in all_keys().values() if "number" in key.expects]
MODES = {"fully_async": 1, "separate_async": 1, "colocate_async": 0, "sync": 0}
"""With the number of rollout nodes that each mode wants."""
BEYOND = ["1e308", "-1e308", "2e30", ".nan", ".inf", str(10**31), str(10**400), "0x" + "f" * 5000]
"""The last one YAML reads, but Python does not write."""
ON_THE_EDGE = ["0", "5e-324", "1e-100", "1e30", str(2**63 - 1), str(2**63), str(10**30)]
CAPACITIES = [("cpu", Capacity(None, 2**34)), ("cuda", Capacity(80 * 2**30, 2**38)), ("cuda", Capacity(None, None))]


def override(key: Key, number: str) -> str:
    if "list of 2 numbers" in key.expects:
        return f"{key.path}=[0.9, {number}]"
    return f"{key.path}=[2, {number}]" if "list" in key.expects else f"{key.path}={number}"


def load(key: Key, number: str) -> SwingshiftConfig | None:
    try:
        return load_config([DEFAULT_FILE], [override(key, number)])
    except ConfigError as error:
        [line] = str(error).splitlines()
        assert line.startswith(key.path.rpartition(".")[0]) and key.leaf in line and ";" in line and len(line) < 400
        return None


def use(config: SwingshiftConfig) -> None:
    """What ``config check``, ``config show``, ``train --dry-run`` and ``plan --memory`` compute."""
    try:
        check_config(config)
    except ConfigError as error:
        assert str(error)
        return
    assert to_yaml(config)
    for device_kind, capacity in CAPACITIES:
        assert plan_rows(make_plan(config, device_kind))
        plan = make_memory_plan(config, sizes(config), device_kind, capacity)
        verdict = judge(config, sizes(config), device_kind, capacity)
        assert device_table(plan.devices, capacity.device_bytes) and machine_table(plan)
        assert facts(plan) and summary(plan) and to_record(plan, verdict)


def sizes(config: SwingshiftConfig) -> ModelSizes:
    return ModelSizes.of_builtin(config.actor_rollout_ref.model, vocab_size=40)


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: key.path)
def test_a_number_is_refused_or_works(key: Key) -> None:
    assert [number for number in BEYOND if load(key, number) is not None] == []
    for number in ON_THE_EDGE:
        config = load(key, number)
        if config is None:
            continue
        for mode, num_nodes in MODES.items():
            config.trainer.v1.trainer_mode = mode  # type: ignore[assignment]
            if key.path != "rollout.nnodes":
                config.rollout.nnodes = num_nodes
            use(config)


def test_the_edges_are_within() -> None:
    assert load_config([], [f"data.seed={-(2**63)}"]).data.seed == -(2**63)
    assert load_config([], [f"data.size={2**63 - 1}"]).data.size == 2**63 - 1
    assert load_config([], ["actor_rollout_ref.actor.grad_clip=1e30"]).actor_rollout_ref.actor.grad_clip == 1e30
    assert load_config([], ["async_training.staleness_threshold=1000"]).async_training.staleness_threshold == 1000


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("async_training.staleness_threshold=1e308", "of at least 0 and of at most 1000"),
        ("actor_rollout_ref.rollout.n=1000000000", "above 0 and of at most 10000"),
        ("trainer.seed=-1", "of at least 0 and below 4294967296"),
        ("data.size=9223372036854775808", "give a whole number that fits into 64 bits"),
        ("global_profiler.steps=[1, 9223372036854775808]", "give a whole number that fits into 64 bits"),
        ("actor_rollout_ref.actor.optim.lr=1e-200", "give a number between 1e-100 and 1e30"),
        ("data.size=0x" + "f" * 5000, "correct or quote it"),
        ("data.task_options={max_digits: 0x" + "f" * 5000 + "}", "correct or quote it"),
    ],
)
def test_the_remedy_says_what_is_possible(override: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([], [override])
    [line] = str(caught.value).splitlines()
    assert line.startswith(override.partition("=")[0]) and remedy in line
