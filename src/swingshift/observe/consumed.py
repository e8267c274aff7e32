"""``consumed.jsonl``: which groups were trained on, all of them, in the order they were."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.observe.guard import Guard
from swingshift.observe.line_file import LineFile

logger = logging.getLogger(__name__)

CONSUMED_FILE = "consumed.jsonl"


class ConsumedLog:
    """One line for each optimizer pass, with nothing but numbers and ids. Errors are warned about once.

    ``num_consumed`` counts all groups of the run up to and with the line, as checkpoints do.
    """

    def __init__(self, path: Path) -> None:
        self._guard = Guard("consumed log")
        self._file = LineFile(path, flush_each=True)
        self._num_consumed = 0

    def go_on(self, num_consumed: int) -> None:
        """Cut off what comes after so many groups: a run that goes on from there trains it again."""
        self._num_consumed = num_consumed
        with self._guard():
            newest = self._file.cut(lambda record: record["num_consumed"] <= num_consumed)
            # In a new folder it begins with what this folder's run trains.
            if newest is not None and newest["num_consumed"] < num_consumed:
                logger.warning(
                    "%s knows of %d groups only, but the checkpoint was trained on %d; the rest was lost",
                    CONSUMED_FILE,
                    newest["num_consumed"],
                    num_consumed,
                )

    def log(self, groups: Sequence[SampleGroup], version: WeightVersion) -> None:
        """``groups`` were trained on at weight version ``version``."""
        self._num_consumed += len(groups)
        with self._guard():
            self._file.write(
                {
                    "cycle": version + 1,
                    "version": version,
                    "num_consumed": self._num_consumed,
                    "group_ids": [group.group_id for group in groups],
                    "prompt_uids": [group.prompt.uid for group in groups],
                }
            )

    def flush(self) -> None:
        """What a full disk refused before."""
        with self._guard():
            self._file.flush()

    def close(self) -> None:
        with self._guard():
            self._file.close()
