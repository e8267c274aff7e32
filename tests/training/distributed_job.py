"""What each rank of test_distributed.py runs, in a process of its own."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from training_builders import actor, group, mixed_groups, tiny, weights

from swingshift.config.schema import RolloutCorrectionConfig
from swingshift.errors import TrainerError
from swingshift.training.worker import TorchTrainWorker

SCENARIOS = {
    "plain": {"ppo_mini_batch_size": 3, "ppo_epochs": 2},
    "everything": {
        "ppo_mini_batch_size": 4,
        "loss_agg_mode": "seq-mean-token-mean",
        "entropy_coeff": 0.05,
        "use_kl_loss": True,
        "ppo_max_token_len_per_gpu": 30,
        "grad_clip": 0.5,
    },
    "one_group": {"ppo_mini_batch_size": 1},
    "decoupled": {"ppo_mini_batch_size": 3, "ppo_max_token_len_per_gpu": 40, "optim": {"lr": 1e-2}},
}
CORRECTIONS = {"decoupled": RolloutCorrectionConfig(bypass_mode=False, rollout_is_threshold=1.5)}


def groups_of(name: str, step: int):
    if name == "one_group":
        return [mixed_groups(seed=step)[0], group(50, [1.0, 1.0])]
    return [*mixed_groups(num=7, seed=step), group(50, [1.0, 1.0], lengths=[9, 9])]


def bad_groups():
    bad = group(7, [0.0, 1.0], lengths=[1, 1])
    return [replace(bad, samples=tuple(replace(s, log_probs=(math.nan,)) for s in bad.samples))]


def run_scenarios(rank: int, world_size: int) -> dict[str, tuple[dict[str, torch.Tensor], dict[str, float]]]:
    results = {}
    for name, config in SCENARIOS.items():
        # Rank 0's weights must become everybody's, also those of the reference model.
        correction = CORRECTIONS.get(name)
        worker = TorchTrainWorker(
            tiny(seed=rank), actor(**config), correction=correction, rank=rank, world_size=world_size
        )
        # Two collections of one cycle, the second with the weights of its start, and one of the next.
        for step in range(3):
            result = worker.train(groups_of(name, step), step // 2)
            if step == 1:
                second = {f"second {key}": value for key, value in result.metrics.items()}
        results[name] = (weights(worker), {**second, **result.metrics})
    return results


def fails_on_every_rank(rank: int, world_size: int) -> bool:
    worker = TorchTrainWorker(tiny(), actor(), rank=rank, world_size=world_size)
    try:
        worker.train(bad_groups(), 0)
    except TrainerError as error:
        return "nan" in str(error)
    return False


def run_rank(_spawn_index: int, rank: int, world_size: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    try:
        for name, (tensors, metrics) in run_scenarios(rank, world_size).items():
            text = {key: repr(value) for key, value in metrics.items()}
            save_file(tensors, Path(folder) / f"{name}-{rank}.safetensors", metadata=text)
        assert fails_on_every_rank(rank, world_size), "a failure on one rank must be seen on all"
    finally:
        dist.destroy_process_group()
