"""Data sets of the reasoning-gym library: generated puzzles with their own scoring."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from swingshift.errors import ConfigError, DataError
from swingshift.tasks.names import suggest
from swingshift.tasks.rows import Row, SourceOptions

# The library seeds row i with seed + i, so neighbouring seeds share rows: val starts far away.
VAL_SEED_OFFSET = 2**30
_TAG = "__"


def load_reasoning_gym(
    name: str, options: SourceOptions, split: str = "train", key: str = "data.train_files"
) -> list[Row]:
    """``data.size`` rows of one data set; ``data.task_options`` goes to it. Raises ConfigError and DataError.

    Small puzzles can still come up in both train and val: the library draws them independently.
    """
    settings = {
        "seed": options.seed + (VAL_SEED_OFFSET if split == "val" else 0),
        "size": options.size,
        **options.task_options,
    }
    dataset = _create(name, settings, key)
    source = f"reasoning_gym:{name}"
    return [_row(dataset[i], source, settings, f"{key}: {source} row {i + 1}") for i in range(len(dataset))]


def score_reasoning_gym(prompt: str, response: str, answer: Any, **extra: Any) -> float:
    """The data set's own ``score_answer`` on the text within <answer> tags, else on the whole response."""
    source = extra.get("reasoning_gym")
    if not isinstance(source, Mapping):
        raise DataError(
            "reward.name=reasoning_gym can only score reasoning_gym: data sources; set another reward.name"
        )
    from reasoning_gym.utils import extract_answer

    dataset = _cached(source["name"], json.dumps(source["settings"], sort_keys=True))
    tagged = extract_answer(response)
    return float(dataset.score_answer(response.strip() if tagged is None else tagged, unpack(source["entry"])))


def _row(entry: Mapping[str, Any], source: str, settings: Mapping[str, Any], where: str) -> Row:
    name = source.partition(":")[2]
    data = {
        "answer": pack(entry["answer"], where),
        "data_source": source,
        "reasoning_gym": {"name": name, "settings": dict(settings), "entry": pack(dict(entry), where)},
    }
    return Row(entry["question"], data, where)


def _create(name: str, settings: Mapping[str, Any], key: str) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"{key}: reasoning_gym:{name} needs the reasoning-gym library ({error}); "
            "install it with: pip install 'swingshift[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise ConfigError(f"{key}: reasoning-gym has no data set {name!r}; {suggest(name, DATASETS)}")
    try:
        return reasoning_gym.create_dataset(name, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        # The library checks its options with assert.
        raise ConfigError(f"data.task_options: {name} refuses {dict(settings)}: {error}; correct it") from error


@lru_cache(maxsize=16)
def _cached(name: str, settings: str) -> Any:
    return _create(name, json.loads(settings), "data.train_files")


def pack(value: Any, where: str = "value") -> Any:
    """As JSON values that ``unpack`` turns back exactly (some scoring functions insist on tuples)."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [pack(v, where) for v in value]
    if isinstance(value, tuple):
        return {f"{_TAG}tuple": [pack(v, where) for v in value]}
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith(_TAG) for k in value):
            return {k: pack(v, where) for k, v in value.items()}
        return {f"{_TAG}dict": [[pack(k, where), pack(v, where)] for k, v in value.items()]}
    raise DataError(f"{where}: holds a {type(value).__name__}, which cannot be stored; use another data set")


def unpack(value: Any) -> Any:
    """The inverse of ``pack``."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if f"{_TAG}tuple" in value:
        return tuple(unpack(v) for v in value[f"{_TAG}tuple"])
    if f"{_TAG}dict" in value:
        return {unpack(k): unpack(v) for k, v in value[f"{_TAG}dict"]}
    return {k: unpack(v) for k, v in value.items()}
