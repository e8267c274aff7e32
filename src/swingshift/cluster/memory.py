"""The memory preflight: the model's sizes, what memory there is, and whether a run fits. Loads no weights."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swingshift.config.memory_plan import Capacity, MemoryPlan, make_memory_plan
from swingshift.config.memory_plan_model import ModelSizes
from swingshift.config.memory_plan_verdict import Verdict, judge
from swingshift.config.memory_plan_view import summary
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError
from swingshift.tasks.char_tokenizer import VOCABULARY
from swingshift.tasks.model_folder import find_model

logger = logging.getLogger(__name__)

TINY = "builtin:tiny"
_KEY = "actor_rollout_ref.model.path"
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container says what memory it may use, in the two versions of control groups."""


@dataclass(frozen=True, slots=True)
class Preflight:
    plan: MemoryPlan
    verdict: Verdict


def plan_memory(config: SwingshiftConfig, device_kind: str, device_bytes: int | None = None) -> Preflight:
    """``device_bytes``: the memory of a device, instead of what is found on this machine. Raises ConfigError."""
    sizes = model_sizes(config)
    if device_bytes is not None:
        found = Capacity(device_bytes, None)  # in some other machine
    else:
        found = Capacity(_device_memory() if device_kind == "cuda" else None, machine_memory())
    plan = make_memory_plan(config, sizes, device_kind, found)
    return Preflight(plan, judge(config, sizes, device_kind, found))


def check_memory(config: SwingshiftConfig, device_kind: str, *, is_shared: bool) -> str:
    """Before a run takes devices: raise ConfigError if they cannot hold it, warn if they nearly cannot.

    ``is_shared``: the devices are those of a cluster that may be on other machines, so that what is found on this one
    is only a guess: then nothing is refused. Returns one line for the run's log.
    """
    found = plan_memory(config, device_kind)
    if found.verdict.errors and not is_shared:
        raise ConfigError("\n".join(found.verdict.errors))
    for line in (*found.verdict.errors, *found.verdict.warnings):
        logger.warning("%s", line)
    return summary(found.plan)


# --- the model ----------------------------------------------------------------------------------------------


def model_sizes(config: SwingshiftConfig) -> ModelSizes:
    """Raises ConfigError for a model that cannot be found or is not of a known architecture."""
    model = config.actor_rollout_ref.model
    if model.path == TINY:
        return ModelSizes.of_builtin(model, len(VOCABULARY))
    folder = find_model(model.path)
    values = _fetch_config(config) if folder is None else _read_config(folder, model.path)
    return ModelSizes.of_hf_config(values, model.path)


def _read_config(folder: Path, path: str) -> Mapping[str, Any]:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_KEY}={path}: holds no model (config.json: {error}); give a model folder") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{_KEY}={path}: config.json holds no object; give a model folder")
    return values


def _fetch_config(config: SwingshiftConfig) -> Mapping[str, Any]:
    from transformers import AutoConfig

    model = config.actor_rollout_ref.model
    try:
        found = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except Exception as error:  # whatever the hub or the model's own code raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{_KEY}={model.path}: holds no model that can be read ({type(error).__name__}: {reason}); correct the "
            "id, or give a model folder"
        ) from error
    values: Mapping[str, Any] = found.to_dict()
    return values


# --- what there is ------------------------------------------------------------------------------------------


def _device_memory() -> int | None:
    """Of the smallest GPU here; None if there is none, as on a cluster's head node."""
    import torch

    if not torch.cuda.is_available():
        return None
    # Asking for properties starts no CUDA context, which would take half a gigabyte of the first GPU.
    return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def machine_memory() -> int | None:
    """Of this machine, or of the container it is; None where the system does not say."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # otherwise "max"
            found.append(int(text))
    return min(found)
