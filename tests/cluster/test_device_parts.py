"""What a device process builds from its configuration."""

import pytest

from swingshift.cluster.device_parts import build_parts
from swingshift.cluster.specs import DeviceSpec
from swingshift.config.loading import load_config
from swingshift.config.memory_plan_parts import keeps_proximal
from swingshift.config.schema import ModelConfig
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.training.tiny_model import tiny_llama


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(char_tokenizer(), ModelConfig(num_layers=1, hidden_size=16)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("overrides", "keeps"),
    [
        (["async_training.trigger_parameter_sync_step=4"], True),
        (["async_training.trigger_parameter_sync_step=1"], False),
        (["trainer.v1.trainer_mode=sync", "async_training.trigger_parameter_sync_step=1"], True),
        (["trainer.v1.trainer_mode=sync", "trainer.v1.parameter_sync_step=1"], False),
    ],
)
def test_decoupled_ppo_keeps_weights_where_a_version_is_trained_on_more_than_once(model_path, overrides, keeps):
    config = load_config([], ["algorithm.rollout_correction.bypass_mode=false", *overrides])
    spec = DeviceSpec("hybrid-0", "cpu", 0, rank=0)
    parts = build_parts(config, spec, "cpu", model_path, None)
    try:
        assert parts.worker is not None and parts.worker._proximal is not None
        assert parts.worker._proximal._keep is keeps is keeps_proximal(config)
    finally:
        if parts.engine is not None:
            parts.engine.close()
