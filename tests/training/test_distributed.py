"""Two ranks train like one: real processes, gloo over loopback."""

from __future__ import annotations

import pytest
import torch.multiprocessing as mp
from distributed_job import SCENARIOS, run_rank, run_scenarios
from safetensors import safe_open
from safetensors.torch import load_file
from training_builders import assert_close, assert_equal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of both ranks: this process is one, and starts the other."""
    path = tmp_path_factory.mktemp("ranks")
    context = mp.spawn(run_rank, args=(1, 2, str(path)), nprocs=1, join=False)
    try:
        run_rank(0, 0, 2, str(path))
    finally:
        while not context.join():
            pass
    return path


@pytest.fixture(scope="module")
def single():
    return run_scenarios(0, 1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks_equal_one(folder, single, name):
    ranks = [load_file(folder / f"{name}-{rank}.safetensors") for rank in range(2)]
    assert_equal(ranks[0], ranks[1])
    expected, _ = single[name]
    assert_close(ranks[0], expected, atol=3e-6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_metrics_are_global(folder, single, name):
    _, expected = single[name]
    for rank in range(2):
        with safe_open(folder / f"{name}-{rank}.safetensors", "pt") as file:
            metrics = {key: float(value) for key, value in file.metadata().items()}
        assert metrics.keys() == expected.keys()
        for key, value in expected.items():
            if "padding" not in key and "input" not in key:  # these depend on the layout
                assert metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
