"""The train worker's state on disk: a Hugging Face model folder plus optimizer and random state. No pickle.

The caller makes the folder appear under its final name in one step; here a file is either whole or an error.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from swingshift.errors import CheckpointError
from swingshift.training.optimizer import FlatAdamW
from swingshift.training.weights import named_weights

logger = logging.getLogger(__name__)

FORMAT = 1
OPTIMIZER_TENSORS = "optimizer.safetensors"
OPTIMIZER_STATE = "optimizer.json"
RNG_STATE = "rng.json"
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)


def save(
    folder: Path,
    model: nn.Module,
    optimizer: FlatAdamW,
    rng: np.random.Generator,
    tokenizer_dir: Path | None = None,
) -> None:
    """Write everything into ``folder``, which must exist. Raises CheckpointError if it cannot be written."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: not a folder; create it before saving into it")
    try:
        model.save_pretrained(folder)  # type: ignore[operator]
        tensors = {name: t.contiguous() for name, t in optimizer.state_tensors().items()}
        save_file(tensors, folder / OPTIMIZER_TENSORS)
        state = {"format": FORMAT, "num_steps": optimizer.num_steps}
        (folder / OPTIMIZER_STATE).write_text(json.dumps(state, indent=2))
        (folder / RNG_STATE).write_text(json.dumps(rng.bit_generator.state, indent=2))
        if tokenizer_dir is not None:
            _copy_tokenizer(tokenizer_dir, folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot write the trainer's checkpoint: {error}") from error


def load(folder: Path, model: nn.Module, optimizer: FlatAdamW, rng: np.random.Generator) -> None:
    """Restore bit for bit. Everything is read and checked before anything is changed."""
    weights = named_weights(model)
    state = _read_json(folder / OPTIMIZER_STATE)
    num_steps = state.get("num_steps")
    if state.get("format") != FORMAT or not isinstance(num_steps, int) or num_steps < 0:
        raise CheckpointError(f"{folder / OPTIMIZER_STATE}: format {state.get('format')!r}, need {FORMAT}")
    rng_state = _read_json(folder / RNG_STATE)
    saved = _read_model(folder)
    _check_match(folder, saved, {n: tuple(t.shape) for n, t in weights.items()}, "model")
    tensors = _read_tensors(folder / OPTIMIZER_TENSORS)
    _check_match(folder / OPTIMIZER_TENSORS, tensors, optimizer.expected_tensors(num_steps), "optimizer")
    try:
        rng.bit_generator.state = rng_state
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / RNG_STATE}: not a random generator's state: {error!r}") from error
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])
    optimizer.load_state_tensors(tensors, num_steps)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    files = sorted({file for pattern in TOKENIZER_FILES for file in source.glob(pattern) if file.is_file()})
    if not files:
        logger.warning("%s has no tokenizer files to copy into the checkpoint", source)
    for file in files:
        shutil.copy2(file, folder / file.name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: an object was expected, found {type(value).__name__}")
    return value


def _read_model(folder: Path) -> dict[str, Tensor]:
    """All model tensors, in one file or in the shards that large models are saved as."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors |= _read_tensors(folder / name)
    return tensors


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete") from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: truncated or damaged: {error}") from error


def _check_match(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    missing = sorted(expected.keys() - found.keys())
    unknown = sorted(found.keys() - expected.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{path}: not this {what}'s tensors: {len(missing)} missing {missing[:3]}, "
            f"{len(unknown)} unknown {unknown[:3]}"
        )
    for name, shape in expected.items():
        if tuple(found[name].shape) != shape:
            raise CheckpointError(
                f"{path}: {what} tensor {name} has shape {tuple(found[name].shape)}, expected {shape}"
            )
