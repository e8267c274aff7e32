"""The simulator's part of the command line: options and what they call. Imports nothing heavy by itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swingshift.errors import ConfigError

if TYPE_CHECKING:
    from swingshift.sim.commands import Shown

_SCENARIO = "PRESET | FILE.yaml | key=value"
COMMANDS = {
    "simulate": ("simulate a run in virtual time; without a preset, list them", _SCENARIO),
    "compare": (
        "simulate several scenarios and set them side by side",
        "PRESET[:key=value,…] | FILE.yaml[:…] | key=value",
    ),
    "sweep": ("simulate a grid of scenarios; goes on where it stopped", _SCENARIO),
    "plan": ("find the best split of devices, with and without lending", _SCENARIO),
}
"""Name to summary and what its words are."""
SCENARIO_EPILOG = """\
PRESET is a name that `swingshift simulate` alone lists; FILE is a scenario in YAML. key=value overrides come last:
  swingshift simulate qwen3.5-35b-a3b-dapo cluster.trainer_devices=8 cluster.rollout_devices=24
"""
WITH_VALUE = frozenset({"--out", "--seed", "--seeds", "--jobs", "--devices", "--cycles"})
WITH_OVERRIDES = frozenset({"--grid"})
"""Options followed by one word, and by any number of ``key=…``."""


def add_options(name: str, parser: argparse.ArgumentParser) -> None:
    """The options of one command."""
    parser.set_defaults(command=name)
    match name:
        case "simulate":
            parser.add_argument("--out", metavar="DIR", help="write a run's files there: metrics, lanes, picture")
            parser.add_argument("--seed", type=int, metavar="N", help="of the random draws (default: the scenario's)")
            parser.add_argument("--explain", action="store_true", help="print sources and assumptions instead")
        case "sweep":
            parser.add_argument(
                "--grid",
                nargs="+",
                action="extend",
                required=True,
                metavar="key=v1,v2",
                help="values of one key, each",
            )
            parser.add_argument("--out", required=True, metavar="FILE.jsonl", help="one line a finished point")
        case "plan":
            parser.add_argument("--devices", type=int, required=True, metavar="N", help="devices in all")
            parser.add_argument("--cycles", type=int, default=16, metavar="N", help="cycles to simulate (default 16)")
    if name != "simulate":
        num_seeds = 3 if name == "plan" else 1
        parser.add_argument(
            "--seeds", type=int, default=num_seeds, metavar="N", help=f"seeds each (default {num_seeds})"
        )
        parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one a core)")
    if name != "sweep":
        parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run_simulator(args: argparse.Namespace) -> Shown:
    """Raises ConfigError for wrong input."""
    for option in ("seeds", "jobs", "devices", "cycles"):
        value = getattr(args, option, None)
        if value is not None and value < 1:
            raise ConfigError(f"--{option}={value}: must be at least 1")
    runs = {"simulate": _simulate, "compare": _compare, "sweep": _sweep, "plan": _plan}
    return runs[args.command](args)


def _simulate(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    if not args.inputs:
        return commands.list_presets()
    source, overrides = _one_scenario(args.inputs)
    return commands.simulate(source, overrides, out=args.out, seed=args.seed, as_json=args.json, explain=args.explain)


def _compare(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    items, overrides = _split(args.inputs)
    if not items:
        raise ConfigError("compare: nothing to compare; give presets or files, such as PRESET PRESET:key=value")
    return commands.compare_items(items, overrides, num_seeds=args.seeds, as_json=args.json, num_processes=args.jobs)


def _sweep(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    source, overrides = _one_scenario(args.inputs)
    return commands.run_sweep(
        source, overrides, axes=args.grid, out=args.out, num_seeds=args.seeds, num_processes=args.jobs
    )


def _plan(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    source, overrides = _one_scenario(args.inputs)
    return commands.run_plan(
        source,
        overrides,
        num_devices=args.devices,
        num_seeds=args.seeds,
        num_cycles=args.cycles,
        as_json=args.json,
        num_processes=args.jobs,
    )


def _split(inputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Presets and files, and overrides, each in order."""
    from swingshift.config.layers import is_override

    return [text for text in inputs if not is_override(text)], [text for text in inputs if is_override(text)]


def _one_scenario(inputs: Sequence[str]) -> tuple[str, list[str]]:
    sources, overrides = _split(inputs)
    if len(sources) != 1:
        given = f"not {len(sources)} ({', '.join(sources)})" if sources else "and none is given"
        raise ConfigError(f"one preset or file is needed, {given}; `swingshift simulate` lists the presets")
    return sources[0], overrides
