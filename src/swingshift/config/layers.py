"""Where values come from: YAML files and dotted overrides, read one by one and merged left to right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import KeyValidationError, OmegaConfBaseException

from swingshift.config.problems import Problem

_BROKEN = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What YAML's and OmegaConf's constructors raise for ``0x_``, ``!!int ''`` and what is nested too deeply."""

_MOST_SHOWN = 200
"""Characters of an override in an error line."""

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


@dataclass(frozen=True, slots=True)
class Layer:
    """Raw nested values of one file (``name``) or one override (no name); interpolations unresolved."""

    values: Mapping[str, Any]
    name: str | None = None


def is_override(argument: str) -> bool:
    """True for ``a.b=value``; a file name may contain ``=`` too, but not a dotted key before it."""
    key, sign, _ = argument.partition("=")
    return bool(sign) and _KEY.fullmatch(key.lstrip("+")) is not None


def read_file(path: Path | str) -> Layer | Problem:
    """One YAML file; an empty one is an empty layer."""
    name = str(path)
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return Layer({}, name)
        if not isinstance(root, yaml.MappingNode):
            return _file_problem(name, "is not a mapping; write `section:` lines with `key: value` inside")
        return Layer(_as_mapping(OmegaConf.create(text)), name)
    except FileNotFoundError:
        return _file_problem(name, "no such file; check the path")
    except UnicodeDecodeError as error:
        return _file_problem(name, f"is not UTF-8 text ({error.reason}); give a YAML file")
    except OSError as error:
        return _file_problem(name, f"cannot be read ({error.strerror}); check the path")
    except yaml.YAMLError as error:
        return _file_problem(name, yaml_reason(error))
    except KeyValidationError as error:
        return _file_problem(name, f"holds a key that is not text ({_first_line(error)}); quote it")
    except OmegaConfBaseException as error:
        return _interpolation_syntax(name, error)
    except _BROKEN as error:
        return _file_problem(name, f"holds a value that cannot be read ({_why(error)}); correct or quote it")
    except RuntimeError:  # ~nobody
        return _file_problem(name, "no such user; check the path")


def parse_override(text: str) -> Layer | Problem:
    """One ``a.b.c=value``; the field's prefixes ``+`` and ``++`` change nothing."""
    key, sign, _ = text.partition("=")
    key = key.lstrip("+").strip()
    shown = _short(text) or "''"
    if not sign:
        return Problem(key, f"{shown}: an override needs '='; write {key or 'key'}=value, or give a FILE.yaml")
    if not _KEY.fullmatch(key):
        return Problem(key, f"{shown}: the key is not dotted names; write section.key=value")
    try:
        values = _as_mapping(OmegaConf.from_dotlist([text.lstrip("+")]))
        if any(":" in path and value is None for path, value in leaves(values)):
            return Problem(key, f"{shown}: a mapping needs a space after each colon; quote it: '{key}={{a: 1}}'")
        return Layer(values)
    except yaml.YAMLError as error:
        return Problem(key, f"{shown}: the value is not YAML ({_first(error)}); quote it")
    except OmegaConfBaseException as error:
        return _interpolation_syntax(key, error)
    except _BROKEN as error:
        return Problem(key, f"{shown}: the value cannot be read ({_why(error)}); correct or quote it")


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error) if isinstance(error, ValueError) else "its tag does not fit it"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else is replaced (lists too)."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not itself a non-empty mapping, with its dotted path."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def yaml_reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{_first(error)}; correct the YAML"


def _first(error: yaml.YAMLError) -> str:
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(reason).split())


def _file_problem(name: str, text: str) -> Problem:
    return Problem(name, f"{name}: {text}")


def _interpolation_syntax(where: str, error: OmegaConfBaseException) -> Problem:
    reason = _first_line(error)
    key = error.full_key or where
    prefix = f"{where}: " if key != where else ""
    return Problem(
        key, f"{prefix}{key}: broken interpolation ({reason}); write ${{section.key}} or escape it as \\${{"
    )


def _first_line(error: OmegaConfBaseException) -> str:
    return str(error).partition("\n")[0]


def _as_mapping(config: Any) -> Mapping[str, Any]:
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    repr(
        container
    )  # a ValueError for hexadecimal numbers that are too long to be shown; decimal ones are not even read
    return container  # type: ignore[return-value]
