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
from swingshift.tasks.model_folder import fetch_model, find_model
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
    stop_token_ids: tuple[int, ...]
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
    folder = None
    if model.path != TINY:
        folder = fetch_model(model.path)  # while nothing waits for it
        _check_weights(folder, model.path)
    stops = stop_token_ids(tokenizer, folder)
    reward = RewardPool.from_config(config.reward, config.data, tokenizer)
    return Inputs(tokenizer, stops, prompts, val_prompts, source, reward)


def check_model(config: SwingshiftConfig) -> None:
    """Can the model be loaded and run? Reads its configuration only, so that a mistake shows at once."""
    path = config.actor_rollout_ref.model.path
    folder = find_model(path)
    found = _fetch_config(config) if folder is None else _read_config(folder, path)
    check_supported(found, config.data.max_prompt_length + config.actor_rollout_ref.rollout.response_length)
    if folder is not None:
        _check_weights(folder, path)


def _check_weights(folder: Path, path: str) -> None:
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
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
    except Exception as error:  # whatever the hub or the model's own code raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{_KEY}={model.path}: holds no model that can be read ({type(error).__name__}: {reason}); correct the "
            "id, or give a model folder"
        ) from error


def stop_token_ids(tokenizer: PreTrainedTokenizerBase, folder: Path | None) -> tuple[int, ...]:
    """The tokenizer's end token, and those the model's own generation configuration adds (chat models do).

    ``folder``: the model's, None for the built-in one. Raises ConfigError for a file that cannot be read.
    """
    found = {token for token in (tokenizer.eos_token_id,) if token is not None}
    path = None if folder is None else folder / "generation_config.json"
    if path is not None and path.is_file():
        try:
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            found.update(int(token) for token in ([] if ids is None else ids if isinstance(ids, list) else [ids]))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{_KEY}: {path} cannot be used ({error!r}); correct or remove the file") from error
    return tuple(sorted(found))
