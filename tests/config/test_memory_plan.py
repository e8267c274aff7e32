"""The memory plan: which state holds what, what is refused, and that the advice given helps."""

import re

import pytest

from swingshift.config.loading import load_config
from swingshift.config.memory_plan import CUDA_BYTES, GIB, Capacity, make_memory_plan
from swingshift.config.memory_plan_model import ModelSizes
from swingshift.config.memory_plan_parts import micro_batch_tokens
from swingshift.config.memory_plan_verdict import judge
from swingshift.config.memory_plan_view import device_table, machine_table, summary, to_record
from swingshift.errors import ConfigError

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN25_05B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
LLAMA31_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
SMALL = ModelSizes.of_hf_config(QWEN25_05B, "small")
LENDING = ("async_training.use_dynamic_resource_scheduling=true", "actor_rollout_ref.model.dtype=bfloat16")
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def configured(*overrides):
    return load_config([], [*LENDING, *overrides])


def planned(*overrides, kind="cuda", device=None, machine=None, sizes=SMALL):
    plan = make_memory_plan(configured(*overrides), sizes, kind, Capacity(device, machine))
    return plan, {d.state: dict(d.parts) for d in plan.devices}


@pytest.mark.parametrize(
    ("values", "num_params"),
    [(QWEN3_8B, 8_190_735_360), (QWEN25_05B, 494_032_768), (LLAMA31_8B, 8_030_261_248)],
)
def test_published_parameter_counts(values, num_params):
    assert ModelSizes.of_hf_config(values, "x").num_params == num_params


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({**LLAMA31_8B, "model_type": "mixtral"}, "mixtral"),
        ({"model_type": "llama"}, "num_attention_heads"),
        ({**LLAMA31_8B, "hidden_size": "wide"}, "wide"),
        ({}, "None"),
    ],
)
def test_a_model_of_unknown_sizes_is_an_error(values, word):
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.model\.path=there") as caught:
        ModelSizes.of_hf_config(values, "there")
    assert word in str(caught.value)


def test_each_state_of_a_gpu_holds_its_own():
    plan, states = planned(device=80 * GIB)
    weights = 2 * SMALL.num_params
    training = {"weights", "gradients", "optimizer", "activations", "CUDA"}
    engine = {"weights", "engine's copies", "KV cache", "engine's work", "CUDA"}
    assert set(states["training"]) == training
    assert set(states["switching"]) == training - {"activations"} | {"engine's copies"}
    assert set(states["lent"]) == set(states["rollout"]) == engine, "gradients and optimizer are away"
    assert states["training"]["weights"] == weights
    assert states["training"]["gradients"] == 4 * (SMALL.num_params + 1)
    assert states["training"]["optimizer"] == 12 * SMALL.num_params + 4 * SMALL.num_tensors
    assert {parts["CUDA"] for parts in states.values()} == {CUDA_BYTES}
    assert [m.state for m in plan.machine] == ["training", "lent"]
    assert plan.machine[1].parts["offloaded optimizer"] == states["training"]["optimizer"]


def test_what_is_kept_while_lent_is_counted():
    kept = (f"{ACTOR}.optimizer_offload=false", f"{ACTOR}.free_gradients=false", f"{ACTOR}.use_kl_loss=true")
    _, states = planned(*kept)
    for part in ("gradients", "optimizer", "reference model"):
        assert states["lent"][part] == states["training"][part] > 0
    assert states["lent"]["reference model"] == states["lent"]["weights"]


def test_on_a_cpu_there_is_nowhere_to_offload_to():
    _, states = planned(kind="cpu")
    assert states["lent"]["optimizer"] == states["training"]["optimizer"]
    assert "gradients" not in states["lent"] and "CUDA" not in states["lent"]


def test_only_what_exists_has_a_state():
    never = planned("async_training.use_dynamic_resource_scheduling=false")
    assert list(never[1]) == ["training", "rollout"] and set(never[0].slots) == {"rollout"}
    together = planned("rollout.nnodes=0")
    assert list(together[1]) == ["training", "switching", "lent"] and set(together[0].slots) == {"trainer"}
    assert "weight sync" not in together[0].machine[0].parts


def test_the_cache_follows_the_memory_fraction_of_its_kind():
    many = (f"{ROLLOUT}.max_num_seqs=100000", f"{ROLLOUT}.gpu_memory_utilization=0.3")
    plan, states = planned(*many, f"{ROLLOUT}.standalone_gpu_memory_utilization=0.8", device=80 * GIB)
    weights = states["lent"]["weights"]
    assert states["lent"]["KV cache"] == plan.slots["trainer"] * plan.slot_bytes
    # The trainer's own weights do not count against the engine's share; a standalone engine's do.
    assert 0 <= int(0.3 * 80 * GIB) - states["lent"]["KV cache"] < plan.slot_bytes
    assert 0 <= int(0.8 * 80 * GIB) - weights - states["rollout"]["KV cache"] < plan.slot_bytes
    fallen_back, _ = planned(*many, device=80 * GIB)
    assert 0 <= int(0.3 * 80 * GIB) - weights - fallen_back.slots["rollout"] * plan.slot_bytes < plan.slot_bytes


def test_the_cache_has_no_more_slots_than_responses_and_obeys_its_own_key():
    few, _ = planned(f"{ROLLOUT}.max_num_seqs=5", device=80 * GIB)
    assert dict(few.slots) == {"trainer": 5, "rollout": 5}
    size = few.slot_bytes
    given, states = planned(f"{ROLLOUT}.kv_cache_memory_bytes={3 * size + 1}", device=80 * GIB)
    assert dict(given.slots) == {"trainer": 3, "rollout": 3} and states["lent"]["KV cache"] == 3 * size
    on_cpu, _ = planned(kind="cpu", machine=GIB)
    assert set(on_cpu.slots.values()) == {64}, "max_num_seqs"


def test_a_micro_batch_is_no_larger_than_a_mini_batch():
    assert micro_batch_tokens(configured()) == 16384
    few = configured(f"{ACTOR}.ppo_mini_batch_size=2", f"{ROLLOUT}.n=2")
    assert micro_batch_tokens(few) == 2 * 2 * 1024


def test_all_devices_of_a_machine_share_its_memory_on_cpus():
    plan, states = planned("trainer.n_gpus_per_node=2", "rollout.n_gpus_per_node=3", kind="cpu", machine=10**12)
    training, lent = plan.machine
    assert training.parts["trainer devices"] == 2 * sum(states["training"].values())
    assert lent.parts["trainer devices"] == 2 * sum(states["lent"].values())
    assert training.parts["rollout devices"] == lent.parts["rollout devices"] == 3 * sum(states["rollout"].values())


def test_decoupled_ppo_keeps_one_copy_of_the_weights():
    name = "weights of the cycle's start"
    decoupled = "algorithm.rollout_correction.bypass_mode=false"
    plan, _ = planned(decoupled)
    assert plan.machine[0].parts[name] == plan.machine[1].parts[name] == 2 * SMALL.num_params
    assert name not in planned()[0].machine[0].parts
    assert name not in planned(decoupled, "async_training.trigger_parameter_sync_step=1")[0].machine[0].parts


# --- what is refused ----------------------------------------------------------------------------------------


def verdict(*overrides, kind="cuda", device=None, machine=None, sizes=SMALL):
    return judge(configured(*overrides), sizes, kind, Capacity(device, machine))


def advice(line):
    """The override that an error line asks for."""
    key = line.partition("=")[0]
    found = re.search(r"; lower it to ([\d.]+) or less$|; set it to (true)$", line)
    assert found, line
    return key, found[1] or found[2]


REFUSED = {
    f"{ACTOR}.ppo_max_token_len_per_gpu": ((), {"device": 40 * GIB}),
    f"{ROLLOUT}.gpu_memory_utilization": (
        (
            f"{ACTOR}.ppo_max_token_len_per_gpu=1024",
            f"{ROLLOUT}.gpu_memory_utilization=0.97",
            f"{ROLLOUT}.standalone_gpu_memory_utilization=0.5",
            f"{ROLLOUT}.max_num_seqs=100000",
        ),
        {"device": 80 * GIB},
    ),
    f"{ROLLOUT}.standalone_gpu_memory_utilization": (
        (
            f"{ACTOR}.ppo_max_token_len_per_gpu=1024",
            f"{ROLLOUT}.standalone_gpu_memory_utilization=1.0",
            f"{ROLLOUT}.max_num_seqs=100000",
        ),
        {"device": 80 * GIB},
    ),
    f"{ROLLOUT}.kv_cache_memory_bytes": (
        (f"{ROLLOUT}.kv_cache_memory_bytes={40 * GIB}", f"{ROLLOUT}.max_num_seqs=100000"),
        {"device": 39 * GIB},
    ),
    f"{ACTOR}.optimizer_offload": (
        (
            f"{ACTOR}.ppo_max_token_len_per_gpu=1024",
            f"{ACTOR}.optimizer_offload=false",
            f"{ROLLOUT}.gpu_memory_utilization=0.6",
            f"{ROLLOUT}.standalone_gpu_memory_utilization=0.5",
            f"{ROLLOUT}.max_num_seqs=100000",
        ),
        {"device": 20 * GIB},
    ),
    f"{ROLLOUT}.max_num_seqs": (
        (f"{ROLLOUT}.max_num_seqs=100000", "rollout.n_gpus_per_node=2"),
        {"kind": "cpu", "machine": 400 * GIB},
    ),
}


@pytest.mark.parametrize("key", REFUSED)
def test_the_advice_helps_and_nothing_larger_would(key):
    overrides, where = REFUSED[key]
    errors = verdict(*overrides, **where).errors
    line = next(line for line in errors if line.startswith(f"{key}="))
    named, value = advice(line)
    place = line[len(key) :].partition(": ")[2].partition(" takes ")[0]

    def still(value):
        return any(f": {place} takes " in e for e in verdict(*overrides, f"{named}={value}", **where).errors)

    assert not still(value), "the advice helps"
    if value != "true":
        larger = float(value) + 0.01 if "." in value else int(value) + 1
        assert still(larger)
    for word in ("GiB", "more than the"):
        assert word in line


def test_a_model_that_is_too_large_says_so():
    sizes = ModelSizes.of_hf_config(QWEN3_8B, "large")
    errors = verdict(device=80 * GIB, sizes=sizes).errors
    assert errors and all(line.startswith("actor_rollout_ref.model.path=") for line in errors)
    assert "give a smaller model, or larger devices" in errors[0]
    assert "give a smaller model, or fewer devices" in verdict(kind="cpu", machine=GIB).errors[0]


def test_a_cache_without_room_for_one_response_is_refused():
    [line] = verdict(f"{ROLLOUT}.kv_cache_memory_bytes=1000", "rollout.nnodes=0").errors
    assert line.startswith(f"{ROLLOUT}.kv_cache_memory_bytes=1000: ") and "raise it" in line
    fraction = f"{ROLLOUT}.standalone_gpu_memory_utilization=0.01"
    assert any(line.startswith(fraction) for line in verdict(fraction, device=80 * GIB).errors)


def test_a_tight_fit_is_a_warning():
    plan, _ = planned(kind="cpu")
    most = max(m.total for m in plan.machine)
    assert verdict(kind="cpu", machine=most).errors == ()
    [line] = [w for w in verdict(kind="cpu", machine=most).warnings if "are training" in w]
    assert "(100%)" in line and line.endswith(f"lower {ACTOR}.ppo_max_token_len_per_gpu")
    assert verdict(kind="cpu", machine=most - 1).errors
    roomy = verdict(kind="cpu", machine=most * 10 // 9 + 1)
    assert roomy.errors == roomy.warnings == ()


def test_what_is_not_known_is_not_judged():
    nothing = verdict()
    assert nothing.errors == nothing.warnings == ()


# --- how it is shown ----------------------------------------------------------------------------------------


def test_tables_and_record_agree():
    plan, states = planned(device=80 * GIB, machine=400 * GIB)
    heading, lines = device_table(plan.devices, plan.capacity.device_bytes)
    assert heading == ("one device", "trainer, training", "trainer, switching", "trainer, lent", "rollout")
    assert all(len(line) == len(heading) for line in lines)
    by_name = {line[0]: line[1:] for line in lines}
    assert by_name["gradients"][2:] == ("-", "-") and by_name["of"] == ("80.00 GiB",) * 4
    record = to_record(plan, verdict(device=80 * GIB, machine=400 * GIB))
    assert [d["parts"] for d in record["devices"]] == list(states.values())
    assert [d["total_bytes"] for d in record["devices"]] == [d.total for d in plan.devices]
    assert by_name["total"][0] == f"{record['devices'][0]['total_bytes'] / GIB:.2f} GiB"
    assert machine_table(plan)[0] == ("this machine's memory", "trainer training", "trainer lent")
    assert summary(plan).count("GiB") == 5
