"""One reward worker seen from the control process: started when needed, killed when it does not answer.

A plain subprocess and not ``ProcessPoolExecutor``: that one cannot kill a worker that hangs, gives up all
workers when one dies, and imports the user's main script again in each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from swingshift.errors import ConfigError
from swingshift.tasks.rewards import RewardSpec

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Deadline for starting Python and importing the user's file and what that imports."""

CLOSE_TIMEOUT_S = 3.0
MAX_REPLY_BYTES = 2**24


class WorkerFailure(Exception):
    """The worker hung, died or could not be started; its process is gone and the next call starts another."""


class RewardProcess:
    """Runs one call at a time."""

    def __init__(self, spec: RewardSpec) -> None:
        self._spec = spec
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def call(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The worker's reply. Raises WorkerFailure, and ConfigError if the function cannot be loaded."""
        try:
            if self._process is None:
                await self._start()
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._exchange(request)
            except TimeoutError as error:
                raise WorkerFailure(f"did not return within reward.timeout_s={timeout_s:g} seconds") from error
        except BaseException:  # cancelled as well: a half-read reply would be taken for the next call's
            await self._kill()
            raise

    async def close(self) -> None:
        """End the process: politely, so that its exit handlers run, else by force."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._process.wait()
        await self._kill()

    async def _start(self) -> None:
        try:
            # Its own session: Ctrl-C must not reach it, and a kill must reach what it started.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "swingshift.tasks.reward_worker",
                stdin=PIPE,
                stdout=PIPE,
                limit=MAX_REPLY_BYTES,
                start_new_session=True,
            )
        except OSError as error:  # no memory, no process or no file descriptor left for it
            raise WorkerFailure(f"could not be given a process ({error})") from error
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                reply = await self._exchange(asdict(self._spec))
        except TimeoutError as error:
            raise ConfigError(
                f"{self._spec}: importing it took over {START_TIMEOUT_S:g} s; make it faster"
            ) from error
        except WorkerFailure as error:
            raise ConfigError(f"{self._spec}: importing it {error}; correct the file") from error
        if "config_error" in reply:
            raise ConfigError(reply["config_error"])

    async def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        line = b""
        with contextlib.suppress(ConnectionError):  # it died: the exit code says more
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise WorkerFailure(f"ended its process ({_exit_text(await process.wait())})")
        reply: dict[str, Any] = json.loads(line)
        if reply["printed"].strip():
            logger.info("%s printed: %s", self._spec, reply["printed"].rstrip())
        return reply

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all of its group ended already
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
