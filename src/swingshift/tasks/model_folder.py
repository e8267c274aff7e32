"""The folder of a model on this machine: one's own, or what the Hugging Face cache holds of a hub id."""

from __future__ import annotations

import json
from pathlib import Path

from swingshift.errors import ConfigError

KEY = "actor_rollout_ref.model.path"
BUILTIN_MODEL = "builtin:tiny"

_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_UNWANTED = ("*/*", "consolidated*")
"""The same weights in other forms."""
_TOKENIZERS = ("tokenizer*", "vocab*")


def find_model(path: str) -> Path | None:
    """Without a network: the model's folder, ``~`` expanded; None for a hub id that is not, or not wholly, cached.

    Raises ConfigError for what is neither a folder nor looks like a hub id.
    """
    own = _own_folder(path)
    return _cached(path) if own is None else own


def fetch_model(path: str) -> Path:
    """As ``find_model``, but fetches what is missing of a hub id. Raises ConfigError if that fails."""
    found = find_model(path)
    if found is not None:
        return found
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=[*_WANTED], ignore_patterns=[*_UNWANTED]))
    except Exception as error:  # whatever the hub, the network or the disk raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{KEY}={path}: cannot be fetched from the Hugging Face hub ({type(error).__name__}: {reason}); correct "
            "the id, or give a model folder"
        ) from error


def _own_folder(path: str) -> Path | None:
    try:
        folder = Path(path).expanduser().absolute()
        is_file, is_folder = folder.is_file(), folder.is_dir()
    except RuntimeError:
        raise ConfigError(f"{KEY}={path}: there is no such user; correct the path") from None
    except (OSError, ValueError) as error:  # a name too long, a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{KEY}={path}: cannot be read ({reason}); correct the path") from error
    if is_file:
        raise ConfigError(f"{KEY}={path}: is a file; give the folder it is in")
    if is_folder:
        return folder
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ConfigError(
            f"{KEY}={path}: does not exist; give a model folder, a hub id (owner/name) or {BUILTIN_MODEL}"
        )
    return None


def _cached(hub_id: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(hub_id, local_files_only=True, allow_patterns=[*_WANTED], ignore_patterns=[*_UNWANTED])
        )
    except (OSError, ValueError):  # it is not there, or no valid id
        return None
    return folder if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    """The cache may hold the tokenizer alone, say; what it lacks it does not always know."""
    has_tokenizer = any(any(folder.glob(pattern)) for pattern in _TOKENIZERS)
    return has_tokenizer and (folder / "config.json").is_file() and _has_weights(folder)


def _has_weights(folder: Path) -> bool:
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return all((folder / name).is_file() for name in index["weight_map"].values())
    except FileNotFoundError:
        return any(file.is_file() for file in folder.glob("*.safetensors"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
