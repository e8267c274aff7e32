"""What the command line shows of the log."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from swingshift.config.secrets import MaskingFormatter, Secrets


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is now, not to what it was when logging was set up."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up_logging(verbosity: int) -> None:
    """Levels of standard error; a run's own log gets at least INFO, whatever the console shows."""
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    console = levels[max(0, min(3, verbosity + 1))]
    handler = _StderrHandler()
    handler.setLevel(console)
    handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s", Secrets()))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("swingshift").setLevel(min(console, logging.INFO))
