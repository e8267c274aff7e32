"""``samples.jsonl``: a few generations a cycle, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swingshift.core.types import Sample, SampleGroup, WeightVersion
from swingshift.observe.guard import Guard
from swingshift.observe.line_file import LineFile

Decode = Callable[[Sequence[int]], str]


class SampleLog:
    """Writes the first ``groups_per_cycle`` groups of each cycle. Errors are warned about once.

    ``decode`` turns token ids into text, special tokens included or not as the caller likes.
    """

    def __init__(self, path: Path, decode: Decode, groups_per_cycle: int = 2) -> None:
        self._guard = Guard("sample log")
        self._file = LineFile(path, flush_each=True)
        self._decode = decode
        self._groups_per_cycle = groups_per_cycle
        self._cycle: WeightVersion | None = None
        self._num_written = 0

    def go_on(self, cycle: WeightVersion) -> None:
        """Cut off what comes after ``cycle``: a run that goes on from there trains it again."""
        with self._guard():
            self._file.cut(lambda record: record["cycle"] <= cycle)

    def log(self, cycle: WeightVersion, groups: Sequence[SampleGroup]) -> None:
        """``groups`` of one collection in the cycle that ends with weight version ``cycle``."""
        if cycle != self._cycle:
            self._cycle, self._num_written = cycle, 0
        chosen = groups[: max(0, self._groups_per_cycle - self._num_written)]
        self._num_written += len(chosen)
        with self._guard():
            for group in chosen:
                self._file.write(self._record(cycle, group))

    def _record(self, cycle: WeightVersion, group: SampleGroup) -> dict[str, Any]:
        return {
            "cycle": cycle,
            "group_id": group.group_id,
            "prompt_uid": group.prompt.uid,
            "prompt": self._decode(group.prompt.token_ids),
            "submit_version": group.submit_version,
            "generation_s": round(group.finish_time - group.submit_time, 3),
            "responses": [self._response(sample) for sample in group.samples],
        }

    def _response(self, sample: Sample) -> dict[str, Any]:
        return {
            "text": self._decode(sample.token_ids),
            "reward": sample.reward,
            "finish_reason": sample.finish_reason.value,
            "num_tokens": len(sample.token_ids),
            "versions": [[version, num_tokens] for version, num_tokens in sample.version_spans],
            "num_aborts": sample.num_aborts,
        }

    def close(self) -> None:
        with self._guard():
            self._file.close()
