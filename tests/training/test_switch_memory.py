"""Lending and taking back, hundreds of times, with the real engine and the real train worker over one model.

The steps are those of ``runtime/controller.py``, in its order.
"""

from __future__ import annotations

import gc
import json

import psutil
import pytest
import torch
from training_builders import mixed_groups, tiny

from swingshift.config import memory_plan_parts as parts
from swingshift.config.loading import load_config
from swingshift.config.memory_plan import MIB, Capacity, make_memory_plan
from swingshift.config.memory_plan_model import ModelSizes
from swingshift.core.types import GenerationRequest, SamplingParams
from swingshift.engines.status import EngineState
from swingshift.engines.torch_engine import TorchEngine
from swingshift.training.worker import TorchTrainWorker

PROMPT, RESPONSE = 9, 15
WARM_UP = 20
CYCLES = 200
NORM_COPIES = 4096
"""The engine's scaled copies of norm weights, a few hundred bytes each."""


def tensor_bytes() -> int:
    """Of every tensor alive in this process, each storage once and whole."""
    storages: dict[int, int] = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and item.layout is torch.strided and item.device.type == "cpu":
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Device:
    """A trainer's device as ``cluster/device_parts.py`` builds it."""

    def __init__(self, *overrides: str) -> None:
        self.config = load_config(
            [],
            [
                f"data.max_prompt_length={PROMPT}",
                f"actor_rollout_ref.rollout.response_length={RESPONSE}",
                "actor_rollout_ref.rollout.max_num_seqs=8",
                "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                "actor_rollout_ref.actor.optim.lr=0.001",
                "async_training.use_dynamic_resource_scheduling=true",
                "async_training.trigger_parameter_sync_step=2",
                *overrides,
            ],
        )
        rollout = self.config.actor_rollout_ref.rollout
        dtype = getattr(torch, self.config.actor_rollout_ref.model.dtype)
        self.model = tiny(hidden=32, dtype=dtype)
        self.sizes = ModelSizes.of_hf_config(json.loads(self.model.config.to_json_string()), "tiny")
        self.groups = mixed_groups(2)
        self.worker = TorchTrainWorker(
            self.model,
            self.config.actor_rollout_ref.actor,
            correction=self.config.algorithm.rollout_correction,
            collections_per_cycle=2,
        )
        self.engine = TorchEngine(
            self.model,
            max_num_seqs=rollout.max_num_seqs,
            max_model_len=PROMPT + RESPONSE,
            shares_weights=True,
            start_awake=False,
        )
        self.version = 0
        self.highest = 0

    def look(self) -> None:
        """After every step: never a cache beside what lending gives away; the most there was is remembered."""
        self.highest = max(self.highest, tensor_bytes())
        if self.engine.status().kv_cache_bytes and self.config.actor_rollout_ref.actor.free_gradients:
            assert self.gradient_bytes == 0

    @property
    def gradient_bytes(self) -> int:
        flat = self.worker._optimizer._flat
        own = sum(p.grad is not None for p in self.model.parameters())
        return own if flat is None else flat.untyped_storage().nbytes()

    def train(self) -> None:
        self.version += 1
        for _ in range(2):
            result = self.worker.train(self.groups, self.version)
            assert result.metrics

    def lend(self) -> None:
        self.worker.offload()
        self.look()
        self.engine.wake_up(("weights",)).result(20)
        self.look()
        self.engine.start_weight_update(self.version).result(20)
        self.engine.finish_weight_update(self.version).result(20)
        self.engine.wake_up(("kv_cache",)).result(20)
        self.look()
        self.engine.resume_generation().result(20)

    def generate(self) -> None:
        """Some requests are answered, one is aborted in the middle."""
        params = SamplingParams(max_tokens=RESPONSE, temperature=1.0)
        prompt = tuple(range(1, PROMPT + 1))
        done = self.engine.generate(GenerationRequest("a", prompt, ((), (), ()), (3,) * 3, params))
        assert [len(output.token_ids) for output in done.result(20)] == [3, 3, 3]
        self.cut = self.engine.generate(GenerationRequest("b", prompt, ((),), (RESPONSE,), params))

    def take_back(self) -> None:
        self.engine.abort(refuse=True).result(20)
        assert len(self.cut.result(20)) == 1
        self.engine.sleep(2).result(20)
        self.look()
        self.worker.onload()
        self.look()


@pytest.fixture
def make_device():
    gc.collect()
    gc.freeze()  # what is older is none of ours, and looking through it takes most of the time
    devices: list[Device] = []

    def make(*overrides: str) -> Device:
        devices.append(Device(*overrides))
        return devices[-1]

    yield make
    for device in devices:
        device.engine.close()
    gc.unfreeze()


CASES = {
    "float32": (),
    "decoupled, bfloat16": (
        "algorithm.rollout_correction.bypass_mode=false",
        "actor_rollout_ref.model.dtype=bfloat16",
    ),
    "gradients stay": ("actor_rollout_ref.actor.free_gradients=false",),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_is_where_it_was_after_hundreds_of_switches(make_device, case):
    device = make_device(*CASES[case])
    process = psutil.Process()
    resting, memory = set(), 0
    for cycle in range(WARM_UP + CYCLES):
        device.train()
        if cycle >= WARM_UP:
            resting.add(tensor_bytes())
        device.lend()
        device.generate()
        device.take_back()
        if cycle == WARM_UP:
            gc.collect()
            memory = process.memory_info().rss
    gc.collect()
    assert len(resting) == 1, "the same tensors every time, to the byte"
    assert process.memory_info().rss - memory < 4 * MIB, "20 KB a switch would show"
    device.lend()
    plan = make_memory_plan(device.config, device.sizes, "cpu", Capacity(None, None))
    switching, while_lent = (d for d in plan.devices if d.state in ("switching", "lent"))
    extra = parts.weight_bytes(device.config, device.sizes) if parts.keeps_proximal(device.config) else 0
    tables = resting.pop() - sum(switching.parts[name] for name in ("weights", "gradients", "optimizer")) - extra
    assert 0 <= tables <= while_lent.parts["engine's work"], "of the engine, as long as it lives"
    assert device.highest <= max(switching.total, while_lent.total) + extra + tables + NORM_COPIES


@pytest.mark.parametrize("case", CASES)
def test_what_is_there_in_each_state(make_device, case):
    device = make_device(*CASES[case])
    config, sizes = device.config, device.sizes
    keeps = not config.actor_rollout_ref.actor.free_gradients
    device.train()
    status = device.engine.status()
    assert (status.state, status.kv_cache_bytes, status.weight_bytes) == (EngineState.ASLEEP, 0, 0)
    assert device.gradient_bytes == parts.gradient_bytes(sizes)
    before = tensor_bytes()
    device.lend()
    status = device.engine.status()
    assert status.kv_cache_bytes == 8 * parts.slot_bytes(config, sizes)
    assert status.weight_bytes == parts.packed_bytes(config, sizes), "copies alone: the parameters are the trainer's"
    assert device.gradient_bytes == (parts.gradient_bytes(sizes) if keeps else 0)
    gone = 0 if keeps else parts.gradient_bytes(sizes)
    change = tensor_bytes() - before
    expected = status.kv_cache_bytes + status.weight_bytes - gone
    assert expected <= change <= expected + NORM_COPIES
    device.generate()
    device.take_back()
    assert device.engine.status().kv_cache_bytes == device.engine.status().weight_bytes == 0
    assert tensor_bytes() == before - gone
    device.train()
    assert tensor_bytes() == before


def test_optimizer_state_moves_as_configured(make_device, monkeypatch):
    """There is no second device here, so the moves asked for are counted instead."""
    import swingshift.training.optimizer as optimizer

    asked: list[str] = []
    moved = optimizer._moved
    monkeypatch.setattr(
        optimizer, "_moved", lambda tensor, device: asked.append(device.type) or moved(tensor, device)
    )
    device = make_device()
    device.train()
    device.worker.offload()
    assert asked == ["cpu"] * 3 * len(list(device.model.parameters()))
    asked.clear()
    staying = make_device("actor_rollout_ref.actor.optimizer_offload=false")
    staying.train()
    staying.worker.offload()
    assert asked == []
