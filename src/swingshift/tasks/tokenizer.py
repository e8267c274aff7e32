"""Loading the tokenizer that belongs to a model."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swingshift.errors import ConfigError
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.tasks.model_folder import BUILTIN_MODEL, KEY, find_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer at ``path`` (``builtin:tiny``, a Hugging Face folder or hub id), with eos and pad set.

    Raises ConfigError naming ``actor_rollout_ref.model.path``.
    """
    if path.startswith("builtin:"):
        if path != BUILTIN_MODEL:
            raise ConfigError(f"{KEY}={path}: no such built-in model; use {BUILTIN_MODEL} or a model folder")
        return char_tokenizer()
    folder = find_model(path)
    try:
        chosen = _tokenizer_class(folder)
        tokenizer: PreTrainedTokenizerBase = chosen.from_pretrained(
            folder or path, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # whatever the model's own files or code raise
        message = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{KEY}={path}: no tokenizer could be loaded ({type(error).__name__}: {message}); "
            "give a folder that holds tokenizer.json beside the model"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"{KEY}={path}: the tokenizer has no eos token; set eos_token in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _tokenizer_class(folder: Path | None) -> Any:
    """The generic class where the folder asks for just that (our own do): the automatic choice imports torch."""
    from transformers import PreTrainedTokenizerFast

    settings: dict[str, Any] = {}
    if folder is not None:
        with contextlib.suppress(OSError, ValueError):
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == PreTrainedTokenizerFast.__name__ and "auto_map" not in settings:
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer
