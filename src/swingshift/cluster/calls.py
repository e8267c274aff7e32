"""Awaiting Ray calls: our own errors come back as themselves, a dead process as ReplicaDiedError."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError, WorkerCrashedError

from swingshift.errors import ReplicaDiedError


async def answer(reference: ray.ObjectRef[Any], who: str) -> Any:
    """The result of a remote call. Raises what the remote code raised, or ReplicaDiedError."""
    try:
        return await reference
    except RayTaskError as error:
        raise _cause(error) from None
    except (RayActorError, WorkerCrashedError) as error:
        raise ReplicaDiedError(f"the process of {who} is gone ({_first_line(error)})") from error


def _cause(error: RayTaskError) -> BaseException:
    """The remote exception itself, with the remote traceback as a note."""
    cause = error.cause
    if not isinstance(cause, BaseException):
        return error
    cause.add_note(str(error))
    return cause


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
