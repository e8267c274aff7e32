"""The one place where errors are not fatal: what people only look at must never stop training."""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger(__name__)


class Guard:
    """Keeps the errors of one observer from its caller; the first one is logged with its traceback.

    ``with guard():`` comes with every event of a run, hence no generator.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.num_errors = 0

    def __call__(self) -> Guard:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.num_errors += 1
        if self.num_errors == 1:
            logger.warning("%s failed; training goes on without it", self._name, exc_info=error)
        return True
