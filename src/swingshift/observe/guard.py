"""The one place where errors are not fatal: what people only look at must never stop training."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Guard:
    """Keeps the errors of one observer from its caller; the first one is logged with its traceback."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.num_errors = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.num_errors += 1
            if self.num_errors == 1:
                logger.warning("%s failed; training goes on without it", self._name, exc_info=True)
