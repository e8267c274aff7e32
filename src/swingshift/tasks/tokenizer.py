"""Loading the tokenizer that belongs to a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swingshift.errors import ConfigError
from swingshift.tasks.char_tokenizer import char_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "actor_rollout_ref.model.path"
BUILTIN_MODEL = "builtin:tiny"


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer at ``path`` (``builtin:tiny``, a Hugging Face folder or hub id), with eos and pad set.

    Raises ConfigError naming ``actor_rollout_ref.model.path``.
    """
    if path.startswith("builtin:"):
        if path != BUILTIN_MODEL:
            raise ConfigError(f"{KEY}={path}: no such built-in model; use {BUILTIN_MODEL} or a model folder")
        return char_tokenizer()
    _check_folder(path)
    try:
        chosen = _tokenizer_class(path)
        tokenizer: PreTrainedTokenizerBase = chosen.from_pretrained(path, trust_remote_code=trust_remote_code)
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


def _tokenizer_class(path: str) -> Any:
    """The generic class where the folder asks for just that (our own do): the automatic choice imports torch."""
    from transformers import PreTrainedTokenizerFast

    try:
        settings = json.loads((Path(path).expanduser() / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    if settings.get("tokenizer_class") == PreTrainedTokenizerFast.__name__ and "auto_map" not in settings:
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _check_folder(path: str) -> None:
    try:
        folder = Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{KEY}={path}: there is no such user; correct the path") from None
    if folder.is_file():
        raise ConfigError(f"{KEY}={path} is a file; give the folder it is in")
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
    if looks_local and not folder.is_dir():
        raise ConfigError(
            f"{KEY}={path} does not exist; give a model folder, a hub id (owner/name) or {BUILTIN_MODEL}"
        )
