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
    "plan": ("find the best split of devices, with and without lending, or what memory holds", _SCENARIO),
    "calibrate": ("fit a scenario's costs to runs, and write it", "RUN_DIR"),
}
"""Name to summary and what its words are."""
_SCENARIO_EPILOG = """\
PRESET is a name that `swingshift simulate` alone lists; FILE is a scenario in YAML. key=value overrides come last:
  swingshift simulate qwen3.5-35b-a3b-dapo cluster.trainer_devices=8 cluster.rollout_devices=24
"""
_CALIBRATE_EPILOG = """\
RUN_DIR is what `swingshift train`, or `swingshift simulate --out`, wrote:
  swingshift calibrate runs/demo_static --out mine.yaml
  swingshift simulate mine.yaml async_training.use_dynamic_resource_scheduling=true
"""
_PLAN_EPILOG = f"""\
{_SCENARIO_EPILOG}
With --memory, FILE may be the configuration of a training run; without any, it is the built-in demo:
  swingshift plan --memory my.yaml actor_rollout_ref.rollout.max_num_seqs=64 --device-memory 80GB
"""
EPILOGS = {**dict.fromkeys(COMMANDS, _SCENARIO_EPILOG), "calibrate": _CALIBRATE_EPILOG, "plan": _PLAN_EPILOG}
WITH_VALUE = frozenset(
    {"--out", "--seed", "--seeds", "--jobs", "--devices", "--cycles", "--device-memory", "--start", "--replay"}
)
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
            parser.add_argument("--devices", type=int, metavar="N", help="devices in all")
            parser.add_argument("--cycles", type=int, default=16, metavar="N", help="cycles to simulate (default 16)")
            parser.add_argument(
                "--memory", action="store_true", help="instead: what each device holds, and if it fits"
            )
            parser.add_argument("--device-memory", metavar="SIZE", help="of one GPU, such as 80GB, with --memory")
        case "calibrate":
            parser.add_argument("--out", metavar="FILE.yaml", help="write the scenario there")
    if name not in ("simulate", "calibrate"):
        num_seeds = 3 if name == "plan" else 1
        parser.add_argument(
            "--seeds", type=int, default=num_seeds, metavar="N", help=f"seeds each (default {num_seeds})"
        )
        parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def add_soak_options(parser: argparse.ArgumentParser) -> None:
    """Of ``soak``, which takes no scenario: it draws its worlds."""
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many seeds (default 1000)")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, metavar="J", help="processes (default: one a core)")
    parser.add_argument("--replay", metavar="SEED | CASE", help="one seed, or a case that a soak printed")


def run_simulator(args: argparse.Namespace) -> Shown:
    """Raises ConfigError for wrong input."""
    for option in ("seeds", "jobs", "devices", "cycles"):
        value = getattr(args, option, None)
        if value is not None and value < 1:
            raise ConfigError(f"--{option}={value}: must be at least 1")
    runs = {
        "simulate": _simulate,
        "compare": _compare,
        "sweep": _sweep,
        "plan": _plan,
        "calibrate": _calibrate,
    }
    return runs[args.command](args)


def _simulate(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    if not args.inputs:
        return commands.list_presets(as_json=args.json)
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
        source,
        overrides,
        axes=args.grid,
        out=args.out,
        num_seeds=args.seeds,
        as_json=args.json,
        num_processes=args.jobs,
    )


def _plan(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    source, overrides = _one_scenario(args.inputs)
    if args.devices is None:
        raise ConfigError("--devices: is missing; say how many there are, or ask for --memory")
    if args.device_memory is not None:
        raise ConfigError(f"--device-memory={args.device_memory}: is ignored without --memory; leave it out")
    return commands.run_plan(
        source,
        overrides,
        num_devices=args.devices,
        num_seeds=args.seeds,
        num_cycles=args.cycles,
        as_json=args.json,
        num_processes=args.jobs,
    )


def _calibrate(args: argparse.Namespace) -> Shown:
    from swingshift.sim import commands

    if not args.inputs:
        raise ConfigError("calibrate: no run is given; name the folders of one or more runs")
    return commands.run_calibration(args.inputs, out=args.out, as_json=args.json)


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
