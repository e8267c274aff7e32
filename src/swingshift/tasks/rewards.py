"""Reward functions: the built-in ones, and loading a user's own.

All have one signature; columns of the row beyond prompt and answer arrive as keyword arguments, as far as the
function takes them::

    def reward(prompt: str, response: str, answer, **extra) -> float
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from swingshift.errors import ConfigError, DataError
from swingshift.tasks.builtin_rewards import BUILTIN_REWARDS
from swingshift.tasks.names import suggest
from swingshift.user_code import blamed_on, describe_exception

if TYPE_CHECKING:
    from swingshift.config.schema import DataConfig, RewardConfig


_LIBRARIES = {"math_verify": ("math_verify", "math"), "reasoning_gym": ("reasoning_gym", "reasoning-gym")}


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """Which function scores: ``name`` of a built-in one, or ``path`` (``file.py:function``)."""

    name: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        assert (self.name is None) != (self.path is None), "a name or a path"

    def __str__(self) -> str:
        return f"reward.path={self.path}" if self.path else f"reward.name={self.name}"


def resolve_reward(reward: RewardConfig, data: DataConfig) -> RewardSpec:
    """``reward.path``, else ``reward.name``, else the task's own, else ``exact_match``. Raises ConfigError.

    Looks only at what is cheap to see (is the file there, the library installed?).
    """
    if reward.path is not None:
        _split_path(reward.path)
        return RewardSpec(path=reward.path)
    name = reward.name or _own_reward(data)
    _check_library(name)
    return RewardSpec(name=name)


def _own_reward(data: DataConfig) -> str:
    from swingshift.tasks.builtin import get_task

    names = set()
    for source in data.train_files:
        kind, _, name = source.partition(":")
        if kind == "builtin":
            names.add(get_task(name, data.task_options).reward_name)
        else:
            names.add("reasoning_gym" if kind == "reasoning_gym" else "exact_match")
    if len(names) > 1:
        found = ", ".join(sorted(names))
        raise ConfigError(f"reward.name is unset and data.train_files want different rewards ({found}); set it")
    return names.pop() if names else "exact_match"


def _check_library(name: str) -> None:
    if name not in BUILTIN_REWARDS:
        raise ConfigError(f"reward.name={name}: no such reward; {suggest(name, BUILTIN_REWARDS)}")
    module, extra = _LIBRARIES.get(name, (None, None))
    if module is not None and importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"reward.name={name} needs a missing library; install it with: pip install 'swingshift[{extra}]'"
        )


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A loaded reward function. ``extra_names`` are the columns it takes by keyword; None: all of them."""

    spec: RewardSpec
    function: Callable[..., Any]
    extra_names: frozenset[str] | None = frozenset()
    file: str | None = None

    def __call__(self, prompt: str, response: str, data: Mapping[str, Any]) -> float:
        """One finite reward. Raises DataError naming the key, what went wrong and where (file:line)."""
        extra = {
            k: v
            for k, v in data.items()
            if k not in ("prompt", "response", "answer") and (self.extra_names is None or k in self.extra_names)
        }
        try:
            value = self.function(prompt, response, data.get("answer"), **extra)
        except DataError as error:  # one of ours
            raise DataError(f"{self.spec}: {error}") from error
        except (Exception, SystemExit) as error:  # user code may raise anything, and exit() is no success
            raise DataError(f"{self.spec} raised {describe_exception(error, self.file)}") from error
        return _finite(value, self.spec)


def _finite(value: Any, spec: RewardSpec) -> float:
    if not isinstance(value, Real):
        shown = repr(value)[:80]
        raise DataError(f"{spec} returned {shown} of type {type(value).__name__}; return a finite number")
    number = float(value)
    if not math.isfinite(number):
        raise DataError(f"{spec} returned {number}; return a finite number")
    return number


def load_reward(spec: RewardSpec) -> RewardFunction:
    """The function itself; runs the user's file. Raises ConfigError naming the key."""
    if spec.path is None:
        assert spec.name is not None
        _check_library(spec.name)
        takes_all = spec.name == "reasoning_gym"
        return RewardFunction(spec, BUILTIN_REWARDS[spec.name], None if takes_all else frozenset())
    file, name = _split_path(spec.path)
    module = _import_file(file, spec)
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        hint = suggest(name, functions) if functions else "it defines none"
        raise ConfigError(f"{spec}: {file.name} has no function {name!r}; {hint}")
    function = getattr(module, name)
    return RewardFunction(spec, function, _extra_names(function, spec), str(file))


def _split_path(path: str) -> tuple[Path, str]:
    file_name, _, function = path.rpartition(":")
    if not file_name or not function.isidentifier():
        raise ConfigError(f"reward.path={path} names no function; write it as file.py:function")
    try:
        file = Path(file_name).expanduser().absolute()
        is_there = file.is_file()
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of nobody
        reason = error.strerror if isinstance(error, OSError) else "no such user"
        raise ConfigError(f"reward.path={path}: cannot be read ({reason}); correct the path") from error
    if not is_there:
        raise ConfigError(f"reward.path={path}: there is no file {file}; correct the path")
    return file, function


def _import_file(file: Path, spec: RewardSpec) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(f"swingshift_reward_{file.stem}", file)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{spec}: {file.name} is not a Python file; give a .py file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # so that it can import its neighbours
    with blamed_on(str(spec), f"importing {file.name}", "correct the file", str(file)):
        module_spec.loader.exec_module(module)
    return module


def _extra_names(function: Any, spec: RewardSpec) -> frozenset[str] | None:
    wanted = "write def reward(prompt, response, answer, **extra)"
    if not callable(function):
        raise ConfigError(f"{spec} is a {type(function).__name__}, not a function; {wanted}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{spec} is an async function; {wanted}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C do not tell
        return frozenset()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    has_args = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(positional) < 3 and not has_args:
        raise ConfigError(
            f"{spec} takes only {len(positional)} of the arguments prompt, response and answer; {wanted}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return frozenset(p.name for p in (*positional[3:], *keyword) if p.kind is not p.POSITIONAL_ONLY)
