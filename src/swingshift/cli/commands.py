"""What each command does, given its arguments; heavy imports happen inside. Each returns the exit code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from swingshift.cli import exit_codes
from swingshift.cli.configuration import describe_sources, load, load_checked, render_plan
from swingshift.cli.output import align, emit, show_all, warn
from swingshift.errors import ConfigError
from swingshift.sim.arguments import run_simulator


def train(args: argparse.Namespace) -> int:
    from swingshift.config.run_dir import check_run_dir

    config = load_checked(args)
    if args.dry_run:
        try:
            check_run_dir(config)
        except ConfigError as error:
            warn(args, str(error))
        emit(render_plan(config))
        return 0
    check_run_dir(config)
    from swingshift.cluster.launch import run_training

    code: int = run_training(config, describe_sources(args))
    return code


def check(args: argparse.Namespace) -> int:
    load_checked(args)
    emit("ok\n")
    return 0


def show(args: argparse.Namespace) -> int:
    from swingshift.config.document import to_yaml

    emit(to_yaml(load(args), defaults=args.defaults))
    return 0


def schema(args: argparse.Namespace) -> int:
    from swingshift.config.document import to_markdown
    from swingshift.config.schema import SwingshiftConfig

    emit(to_markdown() if args.markdown else f"{json.dumps(SwingshiftConfig.model_json_schema(), indent=2)}\n")
    return 0


def policies(args: argparse.Namespace) -> int:
    import swingshift.schedule as policies
    from swingshift.schedule.base import find_policy

    rows = []
    for name, origin in policies.available_policies().items():
        source = "built-in" if origin.startswith("swingshift.schedule.") else origin
        try:
            summary = (find_policy(name).__doc__ or "").strip().partition("\n")[0].replace("``", "")
        except Exception as error:  # Whatever goes wrong in another package must not hide the other policies.
            summary = f"cannot be loaded: {error}"
        rows.append((name, source, summary))
    emit(align(rows))
    return 0


def top(args: argparse.Namespace) -> int:
    from swingshift.observe.top import RunWatch, follow

    watch = RunWatch(Path(args.run_dir))
    if args.once or watch.has_ended or not sys.stdout.isatty():
        show_all([watch.view()])
    else:
        follow(watch)
    return 0


def simulator(args: argparse.Namespace) -> int:
    if args.command == "plan" and args.memory:
        return _plan_memory(args)
    show_all(run_simulator(args))
    return 0


def _plan_memory(args: argparse.Namespace) -> int:
    from swingshift.cluster import memory_command

    scenario = memory_command.scenario_of(args.inputs)
    if scenario is not None:
        shown, problems = memory_command.show_scenario(scenario, as_json=args.json)
    else:
        config = load_checked(args)
        shown, problems = memory_command.show_run(config, device_memory=args.device_memory, as_json=args.json)
    show_all(shown)
    if problems:
        raise ConfigError("\n".join(problems))
    return 0


def soak(args: argparse.Namespace) -> int:
    from swingshift.sim.soak_command import SoakCommand

    command = SoakCommand(args)
    for text in command.lines():
        emit(text)
    return exit_codes.FAILED if command.failed else 0


def report(args: argparse.Namespace) -> int:
    from swingshift.observe.report import write_report

    write_report([Path(run) for run in args.runs], Path(args.out))
    emit(f"{args.out}: open it in a browser\n")
    return 0


def trace(args: argparse.Namespace) -> int:
    from swingshift.observe.trace import write_trace

    size = write_trace(Path(args.run_dir), Path(args.out))
    emit(f"{args.out}: {size}; open it at https://ui.perfetto.dev\n")
    return 0
