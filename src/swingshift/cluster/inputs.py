"""What a run reads, checked before anything is written or started."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedTokenizerBase

from swingshift.config.checks import check_against_data
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.types import Prompt
from swingshift.engines.model_shape import check_supported
from swingshift.errors import ConfigError
from swingshift.tasks.prompts import DatasetPromptSource, load_prompts
from swingshift.tasks.reward_pool import RewardPool
from swingshift.tasks.tokenizer import load_tokenizer
from swingshift.training.warm_start import TINY, tiny_tokenizer

logger = logging.getLogger(__name__)

_KEY = "actor_rollout_ref.model.path"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
"""No other format: all others are pickles."""


@dataclass(frozen=True, slots=True)
class Inputs:
    tokenizer: PreTrainedTokenizerBase
    prompts: list[Prompt]
    val_prompts: list[Prompt]
    source: DatasetPromptSource
    reward: RewardPool


def read_inputs(config: SwingshiftConfig) -> Inputs:
    """Raises ConfigError and DataError."""
    model = config.actor_rollout_ref.model
    tokenizer: PreTrainedTokenizerBase
    if model.path == TINY:
        tokenizer = tiny_tokenizer(config)
    else:
        tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
        check_model(config)
    prompts = load_prompts(config.data, tokenizer)
    for warning in check_against_data(config, len(prompts)):
        logger.warning("%s", warning)
    source = DatasetPromptSource(
        prompts,
        epochs=config.trainer.total_epochs,
        shuffle=config.data.shuffle,
        seed=config.data.seed,
        limit=config.rollout.total_rollout_steps,
    )
    val_prompts = load_prompts(config.data, tokenizer, "val") if config.data.val_files else []
    reward = RewardPool.from_config(config.reward, config.data, tokenizer)
    return Inputs(tokenizer, prompts, val_prompts, source, reward)


def check_model(config: SwingshiftConfig) -> None:
    """Can the model be loaded and run? Reads its configuration only, so that a mistake shows at once."""
    path = config.actor_rollout_ref.model.path
    folder = Path(path).expanduser()
    found = _read_config(folder, path) if folder.is_dir() else _fetch_config(config)
    check_supported(found, config.data.max_prompt_length + config.actor_rollout_ref.rollout.response_length)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ConfigError(f"{_KEY}={path}: there are no weights (model.safetensors) in it; give a complete model")


def _read_config(folder: Path, path: str) -> SimpleNamespace:
    """What the check needs of ``config.json``; Transformers would take seconds to be imported."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = str(values["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{_KEY}={path}: holds no model (config.json: {error!r}); give a model folder") from error
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    known = {"model_type": model_type, "hidden_act": values.get("hidden_act", "silu")}
    known |= {name: values.get(name) for name in ("sliding_window", "layer_types")}
    return SimpleNamespace(rope_parameters={"rope_type": rope.get("type", "default"), **rope}, **known)


def _fetch_config(config: SwingshiftConfig) -> Any:
    from transformers import AutoConfig

    model = config.actor_rollout_ref.model
    try:
        return AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{_KEY}={model.path}: holds no model that can be read ({reason})") from error


def stop_token_ids(config: SwingshiftConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokenizer's end token, and those the model's own generation configuration adds (chat models do)."""
    found: set[int] = set()
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    path = Path(config.actor_rollout_ref.model.path) / "generation_config.json"
    if path.is_file():
        ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        found.update([ids] if isinstance(ids, int) else ids or [])
    return tuple(sorted(found))
