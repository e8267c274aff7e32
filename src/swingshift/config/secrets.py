"""Secrets stay out of what a run writes: passwords, tokens and keys become ``***``.

A secret is known by the name it has, in the configuration or in the environment; its value is then masked wherever it
turns up. Free-form options (``data.task_options``, ``async_training.dynamic_schedule_policy_kwargs``) are where such
names occur: no key of our own has one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MASK = "***"

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_ALWAYS = frozenset(
    {
        "apikey",
        "accesskey",
        "authtoken",
        "authorization",
        "bearer",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "privatekey",
        "pwd",
        "secret",
        "secrets",
    }
)
_KEY_OF = frozenset(
    {
        "access",
        "account",
        "api",
        "auth",
        "client",
        "encryption",
        "license",
        "master",
        "private",
        "service",
        "session",
        "signing",
    }
)
_TOKEN_OF = frozenset(
    {"access", "api", "auth", "bearer", "bot", "hf", "hub", "id", "oauth", "private", "refresh", "session", "user"}
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][\w.-]*)([\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;{}\[\]]+)")
_URL_LOGIN = re.compile(r"(\w+://)[^\s/@:]+:[^\s/@]+@")
_SHORTEST = {"config": 4, "environment": 8}
"""Characters of a value below which it is masked in its own place only: it could be part of any text."""
_RANDOM_LENGTH = 20


def names_secret(name: str) -> bool:
    """``api_key``, ``dbPassword``, ``HF_TOKEN``; but not ``max_tokens``, ``eos_token`` or ``sort_key``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    before = words[-2] if len(words) > 1 else None
    if words[-1] in ("token", "tokens"):
        return before in _TOKEN_OF or (before is None and words[-1] == "token") or not _ALWAYS.isdisjoint(words)
    if words[-1] in ("key", "keys") and before in _KEY_OF:
        return True
    return not _ALWAYS.isdisjoint(words)


def is_secret(name: str, value: object) -> bool:
    """A name that says so; or one that ends in key or token, with a value that looks made up by a machine."""
    if value is None or value == MASK:
        return False
    if names_secret(name):
        return True
    words = _WORDS.findall(name)
    return bool(words) and words[-1].lower() in ("key", "token") and _looks_random(value)


def _looks_random(value: object) -> bool:
    if not isinstance(value, str) or len(value) < _RANDOM_LENGTH or not re.fullmatch(r"[\w+/=.~-]+", value):
        return False
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values to keep out of sight, the longest first."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Secrets:
        """Those of a configuration's values and of the environment."""
        surroundings = os.environ if environment is None else environment
        found = {text for text in map(str, _values(config)) if len(text) >= _SHORTEST["config"]}
        found |= {
            value
            for name, value in surroundings.items()
            if len(value) >= _SHORTEST["environment"] and is_secret(name, value)
        }
        return cls(tuple(sorted(found - {MASK}, key=lambda text: (-len(text), text))))

    def mask_text(self, text: str) -> str:
        """Known values, ``name=value`` with a secret name, and logins in addresses."""
        for value in self.values:
            text = text.replace(value, MASK)
        return _URL_LOGIN.sub(rf"\1{MASK}@", _ASSIGNMENT.sub(_mask_assignment, text))

    def mask(self, value: Any, *, inside_secret: bool = False) -> Any:
        """The same nested values with every secret replaced."""
        if isinstance(value, Mapping):
            return {
                name: self.mask(item, inside_secret=inside_secret or _holds_secret(str(name), item))
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mask(item, inside_secret=inside_secret) for item in value]
        if inside_secret and value is not None:
            return MASK
        if isinstance(value, str):
            for secret in self.values:
                value = value.replace(secret, MASK)
            return _URL_LOGIN.sub(rf"\1{MASK}@", value)
        return value


def mask_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped configuration as it may be written down or sent away."""
    masked = Secrets.of(config).mask(config)
    assert isinstance(masked, dict)
    return masked


def masked_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys whose values were masked when the configuration was written, and so are lost."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from masked_keys(value, f"{prefix}{name}.")
        elif any(isinstance(item, str) and MASK in item for item in (value if isinstance(value, list) else [value])):
            yield f"{prefix}{name}"


class MaskingFormatter(logging.Formatter):
    """Log lines and tracebacks without secrets."""

    def __init__(self, line: str, secrets: Secrets) -> None:
        super().__init__(line)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.mask_text(super().format(record))


def _values(config: Mapping[str, Any], *, inside_secret: bool = False) -> Iterator[object]:
    for name, value in config.items():
        secret = inside_secret or _holds_secret(str(name), value)
        if isinstance(value, Mapping):
            yield from _values(value, inside_secret=secret)
        elif secret:
            yield from (item for item in (value if isinstance(value, list | tuple) else [value]) if item is not None)


def _holds_secret(name: str, value: object) -> bool:
    """Booleans are settings of secrets, not secrets."""
    return not isinstance(value, bool) and is_secret(name, value)


def _mask_assignment(match: re.Match[str]) -> str:
    name, sign, value = match.groups()
    bare = value.strip("\"'")
    if any(is_secret(part, bare) for part in name.split(".")):
        return f"{name}{sign}{MASK}"
    return match[0]
