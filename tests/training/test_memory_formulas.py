"""The memory plan against reality: tensors of a real train worker and a real engine, byte for byte."""

from __future__ import annotations

import gc
import json
import random
from concurrent.futures import Future

import pytest
import torch
import transformers as hf
from torch.profiler import ProfilerActivity, profile

from swingshift.cluster.memory import model_sizes
from swingshift.config import memory_plan_parts as parts
from swingshift.config.loading import load_config
from swingshift.core.types import FinishReason, GenerationRequest, Prompt, Sample, SampleGroup, SamplingParams
from swingshift.engines.engine_core import EngineCore
from swingshift.engines.kv_cache import KVCache
from swingshift.engines.model_shape import ModelShape
from swingshift.engines.weights import ModelWeights
from swingshift.training.weights import pack_weights
from swingshift.training.worker import TorchTrainWorker

FAMILIES = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
    "llama-tied-biased": (
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {}),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"head_dim": 24, "num_key_value_heads": 1}),
}
PROMPT, RESPONSE, VOCAB = 9, 23, 120


def model_and_config(folder, family="llama", *overrides, vocab=VOCAB):
    """A random model, and a configuration whose model folder holds its config.json and nothing else."""
    config_class, model_class, extra = FAMILIES[family]
    sizes = {
        "vocab_size": vocab,
        "hidden_size": 48,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    hf_config = config_class(**{**sizes, **extra})
    hf_config.save_pretrained(folder)
    config = load_config(
        [],
        [
            f"actor_rollout_ref.model.path={folder}",
            f"data.max_prompt_length={PROMPT}",
            f"actor_rollout_ref.rollout.response_length={RESPONSE}",
            "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.rollout.max_num_seqs=6",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=256",
            *overrides,
        ],
    )
    torch.manual_seed(0)
    dtype = getattr(torch, config.actor_rollout_ref.model.dtype)
    return model_class(hf_config).to(dtype), config


def worker_for(model, config):
    return TorchTrainWorker(
        model,
        config.actor_rollout_ref.actor,
        temperature=config.actor_rollout_ref.rollout.temperature,
        correction=config.algorithm.rollout_correction,
        collections_per_cycle=config.async_training.trigger_parameter_sync_step,
    )


def longest_groups(config):
    """A mini-batch of the longest prompts and responses there may be."""
    rng = random.Random(0)
    rollout = config.actor_rollout_ref.rollout

    def tokens(count):
        return tuple(rng.randrange(VOCAB) for _ in range(count))

    def one(reward):
        ids = tokens(rollout.response_length)
        return Sample(ids, (-1.0,) * len(ids), ((0, len(ids)),), FinishReason.LENGTH, reward=reward)

    return [
        SampleGroup(
            i,
            Prompt(str(i), tokens(config.data.max_prompt_length)),
            tuple(one(float(k % 2)) for k in range(rollout.n)),
            0,
        )
        for i in range(config.actor_rollout_ref.actor.ppo_mini_batch_size)
    ]


def num_bytes(tensors):
    """Of different storages, whole."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def peak_bytes(call):
    """The most that torch held at once, beyond what it held before."""
    gc.collect()
    gc.disable()  # what an earlier test left must not be freed meanwhile
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
    finally:
        gc.enable()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert events
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_come_from_the_configuration_alone(tmp_path, family):
    model, config = model_and_config(tmp_path, family)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"], "no weights to read"
    sizes = model_sizes(config)
    assert sizes.num_params == sum(p.numel() for p in model.parameters())
    assert sizes.num_tensors == len(list(model.parameters()))
    assert sizes.largest_tensor == max(p.numel() for p in model.parameters())
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == family.partition("-")[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_training_state_is_exact(tmp_path, family, dtype):
    model, config = model_and_config(tmp_path, family, f"actor_rollout_ref.model.dtype={dtype}")
    sizes, worker = model_sizes(config), worker_for(model, config)
    worker.train(longest_groups(config), 0)
    assert num_bytes(model.parameters()) == parts.weight_bytes(config, sizes)
    optimizer = worker._optimizer
    gradients = [master.grad for master in optimizer._masters.values()]
    assert num_bytes(gradients) == parts.gradient_bytes(sizes)
    moments = [value for state in optimizer._adam.state.values() for value in state.values()]
    masters = [optimizer._masters[name] for name in optimizer._low]
    assert num_bytes([*moments, *masters]) == parts.optimizer_bytes(config, sizes)
    buffer, _ = pack_weights(worker.named_weights())
    assert buffer.nbytes <= parts.published_bytes(config, sizes) <= buffer.nbytes + 64 * sizes.num_tensors


@pytest.mark.parametrize("per_cycle", [1, 4])
@pytest.mark.parametrize("bypass", ["true", "false"])
def test_the_copy_of_decoupled_ppo_is_exact(tmp_path, bypass, per_cycle):
    model, config = model_and_config(
        tmp_path,
        "llama",
        f"algorithm.rollout_correction.bypass_mode={bypass}",
        f"async_training.trigger_parameter_sync_step={per_cycle}",
    )
    worker = worker_for(model, config)
    worker.train(longest_groups(config), 0)
    buffers = worker._proximal.buffers if worker._proximal is not None else ()
    expected = parts.weight_bytes(config, model_sizes(config)) if parts.keeps_proximal(config) else 0
    assert num_bytes(buffers) == expected
    assert (expected > 0) == (bypass == "false" and per_cycle > 1)


BOUNDS = {
    "plain": ("llama", []),
    "large vocabulary": ("llama", []),
    "rows that share prompts": (
        "llama",
        ["data.max_prompt_length=60", "actor_rollout_ref.rollout.response_length=12"],
    ),
    "bfloat16": ("llama", ["actor_rollout_ref.model.dtype=bfloat16"]),
    "qwen3, temperature": ("qwen3", ["actor_rollout_ref.rollout.temperature=0.7"]),
    "qwen2, entropy bonus": ("qwen2", ["actor_rollout_ref.actor.entropy_coeff=0.1"]),
    "small micro-batches": ("llama", ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=40"]),
    "one micro-batch": ("qwen3", ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100000"]),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_activations_are_bounded_and_not_by_far(tmp_path, case):
    family, overrides = BOUNDS[case]
    model, config = model_and_config(tmp_path, family, *overrides, vocab=4000 if "vocabulary" in case else VOCAB)
    worker, groups = worker_for(model, config), longest_groups(config)
    worker.train(groups, 0)  # gradients and optimizer state are there from now on
    peak = peak_bytes(lambda: worker.train(groups, 0))
    bound = parts.activation_bytes(config, model_sizes(config))
    assert peak <= bound <= 2 * peak


@pytest.mark.parametrize(
    ("dtype", "sampling", "prompt", "vocab"),
    [
        ("float32", {}, PROMPT, VOCAB),
        ("bfloat16", {}, PROMPT, VOCAB),
        ("float32", {}, 200, VOCAB),
        ("float32", {}, PROMPT, 4000),
        ("float32", {"top_p": 0.9}, PROMPT, 4000),
    ],
)
def test_the_engine_is_exact_and_its_work_is_bounded(tmp_path, dtype, sampling, prompt, vocab):
    overrides = [f"actor_rollout_ref.rollout.{key}={value}" for key, value in sampling.items()]
    overrides += [f"actor_rollout_ref.model.dtype={dtype}", f"data.max_prompt_length={prompt}"]
    model, config = model_and_config(tmp_path, "llama", *overrides, vocab=vocab)
    sizes, slots = model_sizes(config), config.actor_rollout_ref.rollout.max_num_seqs
    length = parts.max_model_len(config)
    shape, device = ModelShape.from_config(model.config), torch.device("cpu")
    weights = ModelWeights(model, shape, shared=True, device=device)
    cache = KVCache(shape, num_slots=slots, max_len=length, dtype=weights.dtype, device=device)

    @torch.inference_mode()
    def generate():
        core = EngineCore(weights, cache, seed=0, version=0, start_awake=True)
        core.resume_generation()
        params = SamplingParams(max_tokens=RESPONSE, temperature=1.0, **sampling)
        for i in range(slots):  # all in one prefill pass, each resumed with nearly all its tokens
            ids = tuple((i + k) % VOCAB for k in range(prompt + RESPONSE - 2))
            request = GenerationRequest(str(i), ids[:prompt], (ids[prompt:],), (2,), params)
            core.generate(request, Future())
        while core.has_work:
            core.step()

    held = slots * parts.slot_bytes(config, sizes) + parts.packed_bytes(config, sizes)
    peak = peak_bytes(generate)
    assert cache.num_bytes == slots * parts.slot_bytes(config, sizes)
    assert weights.num_bytes == parts.packed_bytes(config, sizes) > 0
    assert peak <= held + parts.engine_work_bytes(config, sizes, slots) <= 2 * peak
