"""Weights as one flat buffer."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn
from training_builders import tiny

from swingshift.training.weights import named_weights, pack_weights, unpack_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip_is_exact(dtype):
    model = tiny(dtype=dtype)
    buffer, manifest = pack_weights(named_weights(model))
    restored = unpack_weights(buffer, pickle.loads(pickle.dumps(manifest)))
    assert restored.keys() == named_weights(model).keys()
    for name, value in named_weights(model).items():
        assert restored[name].dtype == value.dtype and torch.equal(restored[name], value)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_buffers_are_unpacked_without_a_copy():
    buffer, manifest = pack_weights(named_weights(tiny()))
    buffer.flags.writeable = False
    restored = unpack_weights(buffer, manifest)
    first = restored[manifest.names[0]]
    assert first.data_ptr() == buffer.ctypes.data


def test_names_are_hugging_faces_and_tied_weights_appear_once():
    model = tiny()
    names = named_weights(model).keys()
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    missing, unexpected = model.load_state_dict(dict(named_weights(tiny(seed=1))), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected


def test_odd_shapes_scalars_and_buffers():
    module = nn.Module()
    module.register_parameter("a", nn.Parameter(torch.randn(3, 5)))
    module.register_buffer("steps", torch.tensor(7))
    module.register_buffer("flags", torch.tensor([True, False, True]))
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    buffer, manifest = pack_weights(named_weights(module))
    assert all(offset % 64 == 0 for offset in manifest.offsets)
    restored = unpack_weights(buffer, manifest)
    assert restored["steps"].item() == 7 and restored["flags"].tolist() == [True, False, True]
    assert torch.equal(restored["a"], module.a) and "scratch" not in restored


def test_packing_into_a_given_buffer():
    model = tiny()
    out = np.zeros(pack_weights(named_weights(model))[1].num_bytes, dtype=np.uint8)
    buffer, _ = pack_weights(named_weights(model), out)
    assert buffer is out and out.any()
    with pytest.raises(AssertionError):
        pack_weights(named_weights(model), out[:-1])
