"""Checks of ``global_profiler``: what would profile nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from swingshift.config.keys import format_value
from swingshift.config.plan import count_cycles
from swingshift.config.problems import Problem
from swingshift.config.schema import SwingshiftConfig

_KEY = "global_profiler"


def profiler_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    profiler = config.global_profiler
    if profiler.tool is None:
        return
    if not profiler.steps:
        key = f"{_KEY}.steps"
        yield Problem(
            key, f"{key}=[]: {_KEY}.tool={profiler.tool} profiles only chosen steps; list them, e.g. [2, 3]"
        )
    if profiler.save_path is None:
        return
    key = f"{_KEY}.save_path"
    try:
        is_file = Path(profiler.save_path).expanduser().is_file()
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of nobody
        reason = error.strerror if isinstance(error, OSError) else "there is no such user"
        yield Problem(key, f"{key}={profiler.save_path}: {reason}; choose another directory")
        return
    if is_file:
        yield Problem(key, f"{key}={profiler.save_path}: is a file, not a directory; choose another directory")


def profiler_warnings(config: SwingshiftConfig) -> Iterator[str]:
    profiler = config.global_profiler
    if not profiler.steps:
        return
    steps = f"{_KEY}.steps={format_value(profiler.steps)}"
    if profiler.tool is None:
        yield f"{steps}: is ignored unless {_KEY}.tool=torch"
        return
    num_steps = count_cycles(config)
    if num_steps is not None and (late := [step for step in profiler.steps if step > num_steps]):
        yield f"{steps}: the run ends after {num_steps} steps, so {format_value(late)} never come"
