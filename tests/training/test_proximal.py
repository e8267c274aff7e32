"""The weights of a cycle's start: kept once, brought back and put away without losing a bit."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from torch import nn
from training_builders import tiny

from swingshift.training.proximal import ProximalWeights


def new_params(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return list(tiny(dtype=dtype).parameters())


@torch.no_grad()
def train(params: list[nn.Parameter], amount: float = 0.25) -> None:
    for p in params:
        p.add_(amount)
    params[0].view(-1)[:4] = torch.tensor([math.nan, -0.0, math.inf, 1e-40])


def bits(tensors) -> list[bytes]:
    return [bytes(t.detach().contiguous().view(torch.uint8).flatten().tolist()) for t in tensors]


def addresses(tensors) -> list[int]:
    return [t.data_ptr() for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_collection_of_a_cycle_sees_its_start(dtype):
    params = new_params(dtype)
    proximal, start, where = ProximalWeights(params), bits(params), addresses(params)
    with proximal.in_place(3):
        assert bits(params) == start
    for _ in range(3):
        train(params)
        current = bits(params)
        assert current != start
        with proximal.in_place(3):
            assert bits(params) == start
            assert addresses(params) == where, "engines share this memory"
        assert bits(params) == current
    assert addresses(params) == where


def test_a_new_version_takes_a_new_copy_into_the_same_buffers():
    params = new_params()
    proximal = ProximalWeights(params)
    assert proximal.buffers == ()
    seen = []
    for version in (1, 2):
        with proximal.in_place(version):
            start = bits(params)
        seen.append(addresses(proximal.buffers))
        train(params)
        with proximal.in_place(version):
            assert bits(params) == start
        assert bits(proximal.buffers) == start
    assert seen[0] == seen[1]


def test_after_forget_the_same_version_begins_a_cycle():
    params = new_params()
    proximal = ProximalWeights(params)
    with proximal.in_place(1):
        pass
    train(params)
    start = bits(params)
    proximal.forget()
    for _ in range(2):
        with proximal.in_place(1):
            assert bits(params) == start
        train(params)


def test_a_failure_inside_puts_the_weights_back():
    params = new_params()
    proximal = ProximalWeights(params)
    with proximal.in_place(1):
        start = bits(params)
    train(params)
    current = bits(params)
    with pytest.raises(RuntimeError, match="inside"), proximal.in_place(1):
        raise RuntimeError("inside")
    assert bits(params) == current and bits(proximal.buffers) == start


def test_a_failure_in_the_first_collection_opens_no_cycle():
    params = new_params()
    proximal = ProximalWeights(params)
    with pytest.raises(RuntimeError, match="inside"), proximal.in_place(1):
        raise RuntimeError("inside")
    train(params)
    start = bits(params)
    with proximal.in_place(1):
        assert bits(params) == start


def live_bytes() -> int:
    """Of all tensors there are, shared memory once."""
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def test_there_is_one_copy_and_room_for_one_tensor():
    params = new_params()
    model_bytes, largest = sum(p.nbytes for p in params), max(p.nbytes for p in params)
    before = live_bytes()
    proximal = ProximalWeights(params)
    for version in (1, 2):
        with proximal.in_place(version):
            assert live_bytes() - before == (model_bytes if version > 1 else 0)
        train(params)
        with proximal.in_place(version):
            assert live_bytes() - before == model_bytes + largest
        assert live_bytes() - before == model_bytes


def test_with_one_collection_a_cycle_nothing_is_copied():
    params = new_params()
    proximal = ProximalWeights(params, keep=False)
    for version in range(3):
        with proximal.in_place(version):
            start = bits(params)
        train(params)
        assert bits(params) != start and proximal.buffers == ()
    with pytest.raises(AssertionError, match="second collection of version 2"), proximal.in_place(2):
        pass
