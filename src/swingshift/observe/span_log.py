"""``timeline.jsonl``: one closed span of one device a line."""

from __future__ import annotations

from pathlib import Path

from swingshift.core.timeline import DeviceSpan
from swingshift.observe.guard import Guard
from swingshift.observe.line_file import LineFile


class SpanLog:
    """Buffered; the timeline calls it with every span that closes. Errors are warned about once."""

    def __init__(self, path: Path) -> None:
        self._guard = Guard("timeline log")
        self._file = LineFile(path, flush_each=False)

    def __call__(self, span: DeviceSpan) -> None:
        record = {
            "device": span.device,
            "state": span.state.value,
            "start_s": round(span.start_s, 6),
            "end_s": round(span.end_s, 6),
        }
        with self._guard():
            self._file.write({**record, "label": span.label} if span.label else record)

    def flush(self) -> None:
        with self._guard():
            self._file.flush()

    def close(self) -> None:
        with self._guard():
            self._file.close()
