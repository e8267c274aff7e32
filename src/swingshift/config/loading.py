"""From files and overrides to a validated configuration, with every mistake reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from swingshift.config import layers
from swingshift.config.keys import nearest_key
from swingshift.config.problems import Problem, problems_of, raise_all
from swingshift.config.schema import SwingshiftConfig

DEFAULT_FILE = Path(__file__).with_name("default.yaml")
"""What ``swingshift train`` runs when it is given no file."""

_ABSENT = object()


def load_config(files: Sequence[Path | str], overrides: Sequence[str]) -> SwingshiftConfig:
    """Merge YAML files left to right, then ``a.b.c=value`` overrides, resolve interpolations, validate.

    Keys that nobody sets have the schema's defaults, which interpolations may refer to. Raises ConfigError
    with one line per mistake, sorted by key.
    """
    read = [*map(layers.read_file, files), *map(layers.parse_override, overrides)]
    problems = [item for item in read if isinstance(item, Problem)]
    found = [item for item in read if isinstance(item, layers.Layer)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in found:
        values = layers.merge(values, layer.values)
        for path, _ in layers.leaves(layer.values):
            sources.pop(path, None)
            if layer.name is not None:
                sources[path] = layer.name
    resolved, unresolved = _resolve(values)
    # A file that could not be read may have held what an interpolation refers to.
    problems += [] if problems else unresolved
    config = SwingshiftConfig()
    try:
        config = SwingshiftConfig.model_validate(resolved)
    except ValidationError as error:
        problems += problems_of(error, sources)
    raise_all(problems)
    return config


def _resolve(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The values with interpolations replaced; those that cannot be are left out and reported."""
    defaults = SwingshiftConfig().model_dump()
    full = OmegaConf.create(layers.merge(defaults, values))
    problems: list[Problem] = []
    resolved = _resolve_keys(full, list(values), "", values, problems)
    return resolved, problems


def _resolve_keys(
    node: DictConfig, keys: Sequence[Any], prefix: str, raw: Mapping[str, Any], problems: list[Problem]
) -> dict[str, Any]:
    resolved = {}
    for key in keys:
        value = _resolve_value(node, key, f"{prefix}{key}", raw[key], problems)
        if value is not _ABSENT:
            resolved[key] = value
    return resolved


def _resolve_value(node: DictConfig, key: Any, path: str, raw: Any, problems: list[Problem]) -> Any:
    try:
        value = node[key]
        if isinstance(value, DictConfig) and isinstance(raw, Mapping):
            return _resolve_keys(value, list(raw), f"{path}.", raw, problems)
        if isinstance(value, DictConfig | ListConfig):
            return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        return value
    except MissingMandatoryValue:
        problems.append(Problem(path, f"{path}=???: must be set; give it a value in a later file or override"))
    except OmegaConfBaseException as error:
        problems.append(Problem(path, f"{path}={raw}: {_interpolation_reason(error)}"))
    return _ABSENT


def _interpolation_reason(error: OmegaConfBaseException) -> str:
    reason = str(error).partition("\n")[0]
    _, found, rest = reason.partition("Interpolation key '")
    if not found:
        return f"cannot be resolved ({reason}); write the value itself or ${{section.key}}"
    wanted = rest.partition("'")[0]
    return f"refers to {wanted}, which does not exist; did you mean ${{{nearest_key(wanted)[0]}}}?"
