"""Awaiting Ray calls: our own errors come back as themselves, a dead process as ReplicaDiedError."""

from __future__ import annotations

import re
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from swingshift.errors import ReplicaDiedError, TrainerError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


async def answer(reference: ray.ObjectRef[Any], who: str) -> Any:
    """The result of a remote call.

    Raises what the remote code raised; ReplicaDiedError if ``who`` does not answer any more; TrainerError if what
    it was sent is gone, because only the trainer hands out references to what it keeps itself.
    """
    try:
        return await reference
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise TrainerError(f"what the trainer sent to {who} is lost, because its process is gone") from error
        raise _cause(error) from None
    except RayError as error:  # an actor's death in all its kinds, and calls that cannot reach it
        raise ReplicaDiedError(f"the process of {who} is gone ({_in_one_line(error)})") from error


def _cause(error: RayTaskError) -> BaseException:
    """The remote exception itself, with the remote traceback as a note."""
    cause = error.cause
    if not isinstance(cause, BaseException):
        return error
    cause.add_note(str(error))
    return cause


def _in_one_line(error: BaseException) -> str:
    """What Ray says first; of an actor that could not start, what it raised, which comes last."""
    lines = _COLOUR.sub("", str(error)).strip().splitlines() or [type(error).__name__]
    return f"it could not start: {lines[-1]}" if "creation task" in lines[0] else lines[0]
