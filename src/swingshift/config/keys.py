"""All configuration keys, flat: what each expects, its default and meaning; and the key nearest to a typo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any

from swingshift.config.schema import SwingshiftConfig
from swingshift.config.section import Section

CONFIDENT = 0.6
"""Similarity from which a suggestion is phrased as one."""


@dataclass(frozen=True, slots=True)
class Key:
    """One dotted key. ``expects`` reads on after "give": ``a whole number above 0``."""

    path: str
    expects: str
    default: Any
    description: str
    is_section: bool = False

    @property
    def leaf(self) -> str:
        return self.path.rpartition(".")[2]


@cache
def all_keys(schema: type[Section] = SwingshiftConfig) -> Mapping[str, Key]:
    """Every section and key by its dotted path, in the schema's order."""
    document = schema.model_json_schema()
    return {key.path: key for key in _walk(document, document["$defs"], "")}


def nearest_key(path: str, keys: Mapping[str, Key] | None = None) -> tuple[str, bool]:
    """The existing key most similar to an unknown one, and whether it is similar enough to suggest.

    A leaf that exists in another section counts more than a similar section: people remember keys by it.
    """
    known = all_keys() if keys is None else keys
    score, best = max((_similarity(path, key), key.path) for key in known.values() if not key.is_section)
    return best, score >= CONFIDENT


def nearest_word(word: object, words: Iterable[str]) -> str | None:
    near = get_close_matches(str(word), list(words), n=1, cutoff=0.7)
    return near[0] if near else None


def format_value(value: Any, limit: int = 60) -> str:
    """A value as YAML users know it, on one line; the rest of a long one is cut off."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        text = f"[{', '.join(format_value(item, limit) for item in value)}]"
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{key}: {format_value(item, limit)}' for key, item in value.items())}}}"
    else:
        text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _similarity(path: str, key: Key) -> float:
    leaf = path.rpartition(".")[2]
    by_leaf = SequenceMatcher(None, leaf, key.leaf).ratio()
    by_path = SequenceMatcher(None, path, key.path).ratio()
    is_suffix = key.path.endswith(f".{path}")
    return 0.65 * by_leaf + 0.35 * by_path + is_suffix


def _walk(node: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[Key]:
    for name, prop in node["properties"].items():
        path = f"{prefix}{name}"
        if "$ref" in prop:
            section = definitions[prop["$ref"].rpartition("/")[2]]
            yield Key(path, "a section with keys of its own", None, section.get("description", ""), True)
            yield from _walk(section, definitions, f"{path}.")
        else:
            yield Key(path, _expects(prop), prop.get("default"), prop.get("description", ""))


def _expects(prop: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in prop:
        return " or ".join(_expects(part) for part in prop["anyOf"])
    if "enum" in prop:
        return f"one of {', '.join(prop['enum'])}"
    if "const" in prop:
        return str(prop["const"])
    match prop.get("type"):
        case "array" if "prefixItems" in prop:
            return f"a list of {len(prop['prefixItems'])} numbers"
        case "array":
            return f"a list, each item {_expects(prop['items'])}"
        case "integer":
            return f"a whole number{_range(prop)}"
        case "number":
            return f"a number{_range(prop)}"
        case kind:
            plain = {"boolean": "true or false", "string": "text", "null": "null", "object": "a mapping"}
            return plain[str(kind)]


def _range(prop: Mapping[str, Any]) -> str:
    words = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    bounds = [f"{word} {prop[bound]}" for bound, word in words.items() if bound in prop]
    return f" {' and '.join(bounds)}" if bounds else ""
