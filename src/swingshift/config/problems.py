"""Mistakes in a configuration, one clear line each: the dotted key, the value, what is wrong, the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from swingshift.config.keys import Key, all_keys, format_value, nearest_key, nearest_word
from swingshift.config.schema import SwingshiftConfig
from swingshift.config.section import Section
from swingshift.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """``key`` sorts the list; ``line`` is the whole sentence, which names the key and its value itself."""

    key: str
    line: str


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one ConfigError with one line per problem, sorted by key; nothing if there are none."""
    lines = dict.fromkeys(" ".join(problem.line.splitlines()) for problem in sorted(problems))
    if lines:
        raise ConfigError("\n".join(lines))


def problems_of(
    error: ValidationError, sources: Mapping[str, str], schema: type[Section] = SwingshiftConfig
) -> list[Problem]:
    """One problem per finding of pydantic in values for ``schema``. ``sources`` names the files that set keys."""
    found = []
    keys = all_keys(schema)
    for detail in error.errors(include_url=False):
        for key, text in _explain(detail, keys):
            source = _source(key, sources)
            found.append(Problem(key, f"{key}{text}{f' (in {source})' if source else ''}"))
    return found


def _source(key: str, sources: Mapping[str, str]) -> str | None:
    """The file that set the key, something inside it, or else the nearest section around it as a whole."""
    inside = next((file for path, file in sources.items() if path.startswith(f"{key}.")), None)
    while key:
        if key in sources:
            return sources[key]
        key = key.rpartition("[")[0] if key.endswith("]") else key.rpartition(".")[0]
    return inside


def _explain(detail: ErrorDetails, keys: Mapping[str, Key]) -> Iterator[tuple[str, str]]:
    """Pairs of a dotted key and the rest of the line (``=value: what is wrong; remedy``)."""
    path, value, kind = _dotted(detail["loc"], keys), detail["input"], detail["type"]
    if kind == "extra_forbidden":
        yield from ((leaf, unknown(leaf, item, keys)) for leaf, item in _leaves(path, value))
        return
    if kind == "invalid_key" or detail["loc"][-1] == "[key]":
        yield path, f": the name {format_value(value)} is not text; quote it"
        return
    key = keys.get(path) or keys.get(path.partition("[")[0])
    if kind == "value_error":
        reason = str(detail["ctx"]["error"])
        if key is not None and key.is_section:
            # A check of a whole section names the key and the value itself.
            name, _, rest = reason.partition("=")
            yield f"{path}.{name}", f"={rest}"
        else:
            yield path, f"={format_value(value)}: {reason}{_unless_told(reason, key, keys)}"
        return
    yield path, f"={format_value(value)}: {_wrong(kind, value)}{_remedy(key, kind, value, keys)}"


def unknown(path: str, value: Any, keys: Mapping[str, Key]) -> str:
    """The rest of a line about a key that does not exist."""
    if path in keys:  # it exists, so the dots must have been part of one name in a YAML file
        return f"={format_value(value)}: is written with dots; nest it, one level per dot"
    near, is_similar = nearest_key(path, keys)
    hint = f"did you mean {near}?" if is_similar else f"the nearest key is {near}"
    return f"={format_value(value)}: unknown key; {hint}"


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)
    else:
        yield path, value


def _dotted(loc: tuple[int | str, ...], keys: Mapping[str, Key]) -> str:
    path = ""
    for part in loc[:-2] if loc[-1] == "[key]" else loc:
        is_index = isinstance(part, int) and path in keys and not keys[path].is_section
        path += f"[{part}]" if is_index else f".{part}" if path else str(part)
    return path


_WRONG = {
    "literal_error": "is not a choice",
    "finite_number": "is not finite",
    "int_from_float": "has a fraction",
    "model_type": "is not a section",
    "too_long": "has too many items",
    "too_short": "has too few items",
    "missing": "has too few items",
    "string_too_short": "is empty",
}
_OUT_OF_RANGE = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}


def _wrong(kind: str, value: Any) -> str:
    if value is None and kind not in ("literal_error", "model_type"):
        return "is not set"
    return _WRONG.get(kind) or ("is out of range" if kind in _OUT_OF_RANGE else "has the wrong type")


def _remedy(key: Key | None, kind: str, value: Any, keys: Mapping[str, Key]) -> str:
    if key is None:
        return ""
    if key.is_section:
        inside = [path for path in keys if path.startswith(f"{key.path}.")]
        return f"; give it keys of its own such as {inside[0]}, or leave it out"
    near = nearest_word(value, _choices(key)) if kind == "literal_error" else None
    meant = f"did you mean {near}? Give" if near else "give"
    return f"; {meant} {key.expects} (default {format_value(key.default)})"


def _choices(key: Key) -> list[str]:
    return key.expects.replace(" or null", "").partition("one of ")[2].split(", ")


def _unless_told(reason: str, key: Key | None, keys: Mapping[str, Key]) -> str:
    return "" if ";" in reason else _remedy(key, "value_error", None, keys)
