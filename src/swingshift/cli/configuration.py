"""The configuration that a command line names: files, overrides, and its plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swingshift.cli.output import align, warn

if TYPE_CHECKING:
    from swingshift.config.schema import SwingshiftConfig


def load(args: argparse.Namespace) -> SwingshiftConfig:
    from swingshift.config.loading import DEFAULT_FILE, load_config

    files, overrides = _split(args.inputs)
    return load_config(files or [DEFAULT_FILE], overrides)


def load_checked(args: argparse.Namespace) -> SwingshiftConfig:
    from swingshift.config.checks import check_config

    config = load(args)
    for warning in check_config(config):
        warn(args, warning)
    if config.trainer.v1.in_steps and config.trainer.v1.replay_buffer.path is not None:
        from swingshift.cluster.step_wiring import step_mode

        step_mode(config)  # imports the user's class
    return config


def _split(inputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and overrides, each in order. What is neither counts as an override, whose parser explains."""
    from swingshift.config.layers import is_override

    files: list[str] = []
    overrides: list[str] = []
    for text in inputs:
        is_file = not is_override(text) and (text.endswith((".yaml", ".yml")) or _exists(text))
        (files if is_file else overrides).append(text)
    return files, overrides


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except OSError:  # longer than any name of a file
        return False


def describe_sources(args: argparse.Namespace) -> str:
    files, overrides = _split(args.inputs)
    return " ".join([*(files or ["the built-in demo"]), *overrides])


def render_plan(config: SwingshiftConfig) -> str:
    from swingshift.config.plan import make_plan, plan_rows, resolve_device_kind

    return align(plan_rows(make_plan(config, resolve_device_kind(config))))
