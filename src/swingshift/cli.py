"""The command line: ``swingshift train | top | report | trace | simulate | compare | … | config … | policies``.

Exit codes: 0 done; 1 a run failed (or a bug, with its traceback); 2 the input is wrong (one line per mistake,
nothing written); 130 interrupted; 141 the reader of our output went away. Heavy imports happen inside the
commands, so that ``--help`` is instant.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from swingshift import __version__
from swingshift.config.secrets import MaskingFormatter, Secrets
from swingshift.errors import ConfigError, DataError, SwingshiftError
from swingshift.sim.arguments import (
    COMMANDS,
    EPILOGS,
    WITH_OVERRIDES,
    WITH_VALUE,
    add_options,
    add_soak_options,
    run_simulator,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from swingshift.config.schema import SwingshiftConfig

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EPILOG = """\
FILEs are YAML, merged left to right; without any, the built-in demo. key=value overrides come last:
  swingshift train my.yaml trainer.seed=1 async_training.staleness_threshold=0.5
"""


class _OutputClosed(Exception):
    """Nobody reads our standard output any more (``… | head``)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        _emit("")  # argparse leaves its help unflushed
        return code
    except _OutputClosed:
        return EXIT_BROKEN_PIPE


def _dispatch(argv: Sequence[str]) -> int:
    try:
        args = _parser().parse_args(_options_last(argv))
        _set_up_logging(args.verbose - args.quiet)
        _let_users_import_from_here()
        code: int = args.run(args)
        return code
    except SystemExit as stop:
        if isinstance(stop.code, int):
            return stop.code
        raise
    except (ConfigError, DataError) as error:
        return _fail(error, EXIT_USAGE)
    except SwingshiftError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


# --- commands -----------------------------------------------------------------------------------------------


def _train(args: argparse.Namespace) -> int:
    from swingshift.config.run_dir import check_run_dir

    config = _load_checked(args)
    if args.dry_run:
        try:
            check_run_dir(config)
        except ConfigError as error:
            _warn(args, str(error))
        _emit(_render_plan(config))
        return 0
    check_run_dir(config)
    from swingshift.cluster.launch import run_training

    code: int = run_training(config, _describe_sources(args))
    return code


def _check(args: argparse.Namespace) -> int:
    _load_checked(args)
    _emit("ok\n")
    return 0


def _show(args: argparse.Namespace) -> int:
    from swingshift.config.document import to_yaml

    _emit(to_yaml(_load(args), defaults=args.defaults))
    return 0


def _schema(args: argparse.Namespace) -> int:
    from swingshift.config.document import to_markdown
    from swingshift.config.schema import SwingshiftConfig

    _emit(to_markdown() if args.markdown else f"{json.dumps(SwingshiftConfig.model_json_schema(), indent=2)}\n")
    return 0


def _policies(args: argparse.Namespace) -> int:
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
    _emit(_align(rows))
    return 0


def _top(args: argparse.Namespace) -> int:
    from swingshift.observe.top import RunWatch, follow

    watch = RunWatch(Path(args.run_dir))
    if args.once or watch.has_ended or not sys.stdout.isatty():
        _show_all([watch.view()])
    else:
        follow(watch)
    return 0


def _simulator(args: argparse.Namespace) -> int:
    if args.command == "plan" and args.memory:
        return _plan_memory(args)
    _show_all(run_simulator(args))
    return 0


def _plan_memory(args: argparse.Namespace) -> int:
    from swingshift.cluster import memory_command

    scenario = memory_command.scenario_of(args.inputs)
    if scenario is not None:
        shown, problems = memory_command.show_scenario(scenario, as_json=args.json)
    else:
        config = _load_checked(args)
        shown, problems = memory_command.show_run(config, device_memory=args.device_memory, as_json=args.json)
    _show_all(shown)
    if problems:
        raise ConfigError("\n".join(problems))
    return 0


def _soak(args: argparse.Namespace) -> int:
    from swingshift.sim.soak_command import SoakCommand

    command = SoakCommand(args)
    for text in command.lines():
        _emit(text)
    return EXIT_FAILED if command.failed else 0


def _report(args: argparse.Namespace) -> int:
    from swingshift.observe.report import write_report

    write_report([Path(run) for run in args.runs], Path(args.out))
    _emit(f"{args.out}: open it in a browser\n")
    return 0


def _trace(args: argparse.Namespace) -> int:
    from swingshift.observe.trace import write_trace

    size = write_trace(Path(args.run_dir), Path(args.out))
    _emit(f"{args.out}: {size}; open it at https://ui.perfetto.dev\n")
    return 0


# --- configuration ------------------------------------------------------------------------------------------


def _load(args: argparse.Namespace) -> SwingshiftConfig:
    from swingshift.config.loading import DEFAULT_FILE, load_config

    files, overrides = _split(args.inputs)
    return load_config(files or [DEFAULT_FILE], overrides)


def _load_checked(args: argparse.Namespace) -> SwingshiftConfig:
    from swingshift.config.checks import check_config

    config = _load(args)
    for warning in check_config(config):
        _warn(args, warning)
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


def _describe_sources(args: argparse.Namespace) -> str:
    files, overrides = _split(args.inputs)
    return " ".join([*(files or ["the built-in demo"]), *overrides])


def _render_plan(config: SwingshiftConfig) -> str:
    from swingshift.config.plan import make_plan, plan_rows, resolve_device_kind

    return _align(plan_rows(make_plan(config, resolve_device_kind(config))))


# --- input and output ---------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line like every other mistake, instead of argparse's usage block."""
        print(f"error: {message}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="swingshift",
        description="Fully-asynchronous RL post-training that lends the trainer's idle devices to rollout.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"swingshift {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more (twice: everything)")
    parser.add_argument("-q", "--quiet", action="count", default=0, help="errors only")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    train = _command(commands, "train", _train, "train a model", takes_inputs=True)
    train.add_argument("--dry-run", action="store_true", help="print the plan (devices, replicas, budget) and stop")

    top = _command(commands, "top", _top, "watch a run from its directory, until it ends or Ctrl-C")
    top.add_argument("run_dir", metavar="RUN_DIR")
    top.add_argument("--once", action="store_true", help="print the view once")

    for name, (summary, words) in COMMANDS.items():
        add_options(name, _command(commands, name, _simulator, summary, words=words))

    add_soak_options(_command(commands, "soak", _soak, "break random simulated runs, check what must hold"))

    report = _command(commands, "report", _report, "write one page about a run, or about several over each other")
    report.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, trained or simulated")
    report.add_argument("-o", "--out", default="report.html", metavar="FILE.html", help="default: report.html")
    trace = _command(commands, "trace", _trace, "write a run as a trace for Perfetto")
    trace.add_argument("run_dir", metavar="RUN", help="folder of a run, trained or simulated")
    trace.add_argument("-o", "--out", default="trace.json", metavar="FILE.json", help="default: trace.json")

    config = _command(commands, "config", None, "check, show or explain a configuration")
    actions = config.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _command(actions, "check", _check, "report every mistake", takes_inputs=True)
    show = _command(actions, "show", _show, "print the resolved configuration as YAML", takes_inputs=True)
    show.add_argument("--defaults", action="store_true", help="every key, not only what differs from its default")
    schema = _command(actions, "schema", _schema, "print the JSON schema of all keys")
    schema.add_argument("--markdown", action="store_true", help="as a page for people")

    _command(commands, "policies", _policies, "list the scheduling policies")
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    run: Callable[[argparse.Namespace], int] | None,
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
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def _options_last(argv: Sequence[str]) -> list[str]:
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


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is now, not to what it was when logging was set up."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _set_up_logging(verbosity: int) -> None:
    """Levels of standard error; a run's own log gets at least INFO, whatever the console shows."""
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    console = levels[max(0, min(3, verbosity + 1))]
    handler = _StderrHandler()
    handler.setLevel(console)
    handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s", Secrets()))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("swingshift").setLevel(min(console, logging.INFO))


def _let_users_import_from_here() -> None:
    """``module:Class`` of the current directory, last so that it shadows nothing."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _align(rows: Sequence[tuple[str, str, str]]) -> str:
    """Columns; a row with only a first cell is a heading."""
    widths = [max(len(row[column]) for row in rows if any(row[1:])) for column in (0, 1)]
    lines = []
    for first, second, third in rows:
        if second or third:
            lines.append(f"  {first:<{widths[0]}}  {second:<{widths[1]}}  {third}".rstrip())
        else:
            lines.append(f"{first}:")
    return "".join(f"{line}\n" for line in lines)


def _show_all(shown: Sequence[RenderableType]) -> None:
    """Text as it is; tables as wide as the terminal, or as they need where there is none."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200)
    for item in shown:
        if isinstance(item, str):
            _emit(item)
            continue
        with console.capture() as capture:
            console.print(item)
        _emit("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _emit(text: str) -> None:
    """Write to standard output; end quietly if nobody reads it any more (``… | head``)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must go somewhere when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _OutputClosed from None


def _warn(args: argparse.Namespace, text: str) -> None:
    if args.quiet == 0:
        print(f"warning: {text}", file=sys.stderr)


def _fail(error: SwingshiftError, code: int) -> int:
    logger.info("failed", exc_info=error)
    for line in Secrets().mask_text(str(error) or type(error).__name__).splitlines():
        print(f"error: {line}", file=sys.stderr)
    return code
