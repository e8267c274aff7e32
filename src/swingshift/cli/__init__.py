"""The command line: ``swingshift train | top | report | trace | simulate | compare | … | config … | policies``.

Exit codes: 0 done; 1 a run failed or standard output cannot be written (or a bug, with its traceback); 2 the input
is wrong (one line per mistake, nothing written); 130 interrupted; 141 the reader of our output went away. Heavy
imports happen inside the commands, so that ``--help`` is instant.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from swingshift.cli import exit_codes
from swingshift.cli.console_log import set_up_logging
from swingshift.cli.output import OutputClosed, emit
from swingshift.cli.parser import make_parser, options_last
from swingshift.config.secrets import Secrets
from swingshift.errors import ConfigError, DataError, SwingshiftError
from swingshift.observe.standard_streams import complain, prepare_output, settle

__all__ = ["main"]

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    prepare_output()
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        emit("")  # argparse leaves its help unflushed
        return code
    except OutputClosed as closed:
        return closed.code
    finally:
        settle(sys.stderr)


def _dispatch(argv: Sequence[str]) -> int:
    try:
        args = make_parser().parse_args(options_last(argv))
        set_up_logging(args.verbose - args.quiet)
        _let_users_import_from_here()
        code: int = args.run(args)
        return code
    except SystemExit as stop:
        if isinstance(stop.code, int):
            return stop.code
        raise
    except SwingshiftError as error:
        is_wrong_input = isinstance(error, ConfigError | DataError) and not error.ended_a_run
        return _fail(error, exit_codes.USAGE if is_wrong_input else exit_codes.FAILED)
    except KeyboardInterrupt:
        complain("interrupted")
        return exit_codes.INTERRUPTED


def _let_users_import_from_here() -> None:
    """``module:Class`` of the current directory, last so that it shadows nothing."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _fail(error: SwingshiftError, code: int) -> int:
    logger.info("failed", exc_info=error)
    for line in Secrets().mask_text(str(error) or type(error).__name__).splitlines():
        complain(f"error: {line}")
    return code
