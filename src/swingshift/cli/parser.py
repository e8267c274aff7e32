"""The words that may be typed: commands, their options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from swingshift import __version__
from swingshift.cli import commands as run
from swingshift.cli import exit_codes
from swingshift.observe.standard_streams import complain
from swingshift.sim.arguments import COMMANDS, EPILOGS, WITH_OVERRIDES, WITH_VALUE, add_options, add_soak_options

_EPILOG = """\
FILEs are YAML, merged left to right; without any, the built-in demo. key=value overrides come last:
  swingshift train my.yaml trainer.seed=1 async_training.staleness_threshold=0.5
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line like every other mistake, instead of argparse's usage block."""
        complain(f"error: {message}; see '{self.prog} --help'")
        raise SystemExit(exit_codes.USAGE)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="swingshift",
        description="Fully-asynchronous RL post-training that lends the trainer's idle devices to rollout.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"swingshift {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more (twice: everything)")
    parser.add_argument("-q", "--quiet", action="count", default=0, help="errors only")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    train = _command(commands, "train", run.train, "train a model", takes_inputs=True)
    train.add_argument("--dry-run", action="store_true", help="print the plan (devices, replicas, budget) and stop")

    top = _command(commands, "top", run.top, "watch a run from its directory, until it ends or Ctrl-C")
    top.add_argument("run_dir", metavar="RUN_DIR")
    top.add_argument("--once", action="store_true", help="print the view once")

    for name, (summary, words) in COMMANDS.items():
        add_options(name, _command(commands, name, run.simulator, summary, words=words))

    add_soak_options(_command(commands, "soak", run.soak, "break random simulated runs, check what must hold"))

    report = _command(commands, "report", run.report, "write one page about a run, or about several over each other")
    report.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, trained or simulated")
    report.add_argument("-o", "--out", default="report.html", metavar="FILE.html", help="default: report.html")
    trace = _command(commands, "trace", run.trace, "write a run as a trace for Perfetto")
    trace.add_argument("run_dir", metavar="RUN", help="folder of a run, trained or simulated")
    trace.add_argument("-o", "--out", default="trace.json", metavar="FILE.json", help="default: trace.json")

    config = _command(commands, "config", None, "check, show or explain a configuration")
    actions = config.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _command(actions, "check", run.check, "report every mistake", takes_inputs=True)
    show = _command(actions, "show", run.show, "print the resolved configuration as YAML", takes_inputs=True)
    show.add_argument("--defaults", action="store_true", help="every key, not only what differs from its default")
    schema = _command(actions, "schema", run.schema, "print the JSON schema of all keys")
    schema.add_argument("--markdown", action="store_true", help="as a page for people")

    _command(commands, "policies", run.policies, "list the scheduling policies")
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    function: Callable[[argparse.Namespace], int] | None,
    summary: str,
    *,
    takes_inputs: bool = False,
    words: str | None = None,
) -> _Parser:
    """``words`` names what a command on scenarios takes; ``takes_inputs`` is for configuration files."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=_EPILOG if takes_inputs else EPILOGS.get(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Repeated here so that they may stand before or after the command.
    parser.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("-q", "--quiet", action="count", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    if takes_inputs:
        words = "FILE.yaml | key=value"
    if words is not None:
        parser.add_argument("inputs", nargs="*", metavar=words)
    if function is not None:
        parser.set_defaults(run=function)
    return parser


def options_last(argv: Sequence[str]) -> list[str]:
    """Options after the command may stand anywhere among files and overrides; argparse wants them together."""
    start = next((i for i, text in enumerate(argv) if not text.startswith("-")), len(argv))
    words: list[str] = []
    options: list[str] = []
    rest = list(argv[start:])
    while rest:
        text = rest.pop(0)
        if not text.startswith("-"):
            words.append(text)
            continue
        options.append(text)
        if text in (*WITH_VALUE, "-o") and rest:
            options.append(rest.pop(0))
        while text in WITH_OVERRIDES and rest and "=" in rest[0] and not rest[0].startswith("-"):
            options.append(rest.pop(0))
    return [*argv[:start], *words, *options]
