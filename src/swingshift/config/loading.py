"""From files and overrides to a validated configuration, with every mistake reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from swingshift.config import layers
from swingshift.config.keys import all_keys, nearest_key
from swingshift.config.problems import Problem, problems_of, raise_all
from swingshift.config.schema import SwingshiftConfig
from swingshift.config.section import Section

S = TypeVar("S", bound=Section)

DEFAULT_FILE = Path(__file__).with_name("default.yaml")
"""What ``swingshift train`` runs when it is given no file."""

_ABSENT = object()


def load_config(files: Sequence[Path | str], overrides: Sequence[str]) -> SwingshiftConfig:
    """A training run's configuration: see ``load_as``."""
    return load_as(SwingshiftConfig, files, overrides)


def load_as(schema: type[S], files: Sequence[Path | str], overrides: Sequence[str]) -> S:
    """Merge YAML files left to right, then ``a.b.c=value`` overrides, resolve interpolations, validate.

    Keys that nobody sets have the schema's defaults, which interpolations may refer to; every key of ``schema``
    needs one. Raises ConfigError with one line per mistake, sorted by key.
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
    resolved, unresolved = _resolve(schema, values)
    # A file that could not be read may have held what an interpolation refers to.
    problems += [] if problems else unresolved
    config = schema()
    try:
        config = schema.model_validate(resolved)
    except ValidationError as error:
        problems += problems_of(error, sources, schema)
    raise_all(problems)
    return config


def _resolve(schema: type[Section], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The values with interpolations replaced; those that cannot be are left out and reported."""
    text = repr(values)
    if "${" not in text and "???" not in text:
        return dict(values), []  # OmegaConf nodes for every key of the schema are most of the time of loading
    defaults = schema().model_dump()
    full = OmegaConf.create(layers.merge(defaults, values))
    problems: list[Problem] = []
    resolved = _Resolver(schema, problems).mapping(full, list(values), "", values)
    return resolved, problems


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Replaces interpolations; ``problems`` collects those that cannot be."""

    schema: type[Section]
    problems: list[Problem]

    def mapping(self, node: DictConfig, keys: Sequence[Any], prefix: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        resolved = {}
        for key in keys:
            value = self.value(node, key, f"{prefix}{key}", raw[key])
            if value is not _ABSENT:
                resolved[key] = value
        return resolved

    def value(self, node: DictConfig, key: Any, path: str, raw: Any) -> Any:
        try:
            value = node[key]
            if isinstance(value, DictConfig) and isinstance(raw, Mapping):
                return self.mapping(value, list(raw), f"{path}.", raw)
            if isinstance(value, DictConfig | ListConfig):
                return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
            return value
        except MissingMandatoryValue:
            line = f"{path}=???: must be set; give it a value in a later file or override"
            self.problems.append(Problem(path, line))
        except OmegaConfBaseException as error:
            self.problems.append(Problem(path, f"{path}={raw}: {self.reason(error)}"))
        return _ABSENT

    def reason(self, error: OmegaConfBaseException) -> str:
        reason = str(error).partition("\n")[0]
        _, found, rest = reason.partition("Interpolation key '")
        if not found:
            return f"cannot be resolved ({reason}); write the value itself or ${{section.key}}"
        wanted = rest.partition("'")[0]
        near = nearest_key(wanted, all_keys(self.schema))[0]
        return f"refers to {wanted}, which does not exist; did you mean ${{{near}}}?"
