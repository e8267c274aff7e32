"""The program of one reward worker process: ``python -m swingshift.tasks.reward_worker``.

It reads one JSON object a line from stdin and answers each with one line on stdout. The first names the
reward function, every further one is a group to score. It ends when stdin closes, even in the middle of a
score, so that no worker outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from swingshift.errors import ConfigError, DataError
from swingshift.tasks.rewards import RewardFunction, RewardSpec, load_reward

GRACE_S = 2.0
"""How long a worker may go on after stdin closed."""

MAX_PRINTED = 2000


def main() -> None:
    requests, replies = _take_channel()
    first = next(requests, None)
    if first is None:
        return
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            function = load_reward(RewardSpec(**first))
    except ConfigError as error:
        _send(replies, {"config_error": str(error), "printed": printed.getvalue()})
        return
    _send(replies, {"ready": True, "printed": printed.getvalue()})
    for request in requests:
        _send(replies, score(function, request))


def score(function: RewardFunction, request: dict[str, Any]) -> dict[str, Any]:
    """Scores of ``request["responses"]``, or the error of the first that has none; with what was printed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            rewards = [function(request["prompt"], r, request["data"]) for r in request["responses"]]
    except DataError as error:
        return {"error": str(error), "printed": printed.getvalue()}
    return {"rewards": rewards, "printed": printed.getvalue()}


def _take_channel() -> tuple[Iterator[dict[str, Any]], TextIO]:
    """Keep stdin and stdout for the protocol: user code reads nothing there and writes to stderr."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(incoming, lines), daemon=True).start()
    requests = (json.loads(line) for line in iter(lines.get, None))
    return requests, os.fdopen(outgoing, "w", encoding="utf-8")


def _read_lines(descriptor: int, lines: queue.SimpleQueue[str | None]) -> None:
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        for line in stream:
            lines.put(line)
    lines.put(None)
    time.sleep(GRACE_S)
    _end_the_group()


def _end_the_group() -> None:
    """End this process at once, with what user code started from it."""
    if os.getpgrp() == os.getpid():  # else the group is somebody else's
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _send(replies: TextIO, reply: dict[str, Any]) -> None:
    reply["printed"] = reply["printed"][:MAX_PRINTED]
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
