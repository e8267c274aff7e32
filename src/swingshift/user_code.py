"""Code that users bring (policies, replay buffers, reward functions): importing it, and what to say if that fails."""

from __future__ import annotations

import contextlib
import importlib
import os
import traceback
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from swingshift.errors import ConfigError

_NOT_THEIRS = (f"{Path(__file__).parent}{os.sep}", f"{Path(importlib.__file__).parent}{os.sep}", "<frozen ")
"""Where files begin that only lead to the user's: ours, and those of the import system."""
_BACKPORT = f"{os.sep}importlib_metadata{os.sep}"
"""Part of the import system too, once some library has loaded it."""


@contextlib.contextmanager
def blamed_on(setting: str, doing: str, remedy: str, file: str | None = None) -> Iterator[None]:
    """Around every use of user code before training: whatever it raises becomes a ConfigError of one line.

    ``setting`` is the key and its value, ``doing`` what was done with the code; ``file`` see ``describe_exception``.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # user code may raise anything, and exit() is no success
        problem = describe_exception(error, file)
        raise ConfigError(f"{setting}: {doing} raised {problem}; {remedy}") from error


def load_object(path: str, key: str) -> Any:
    """What ``module:name`` names. Raises ConfigError naming the key."""
    setting, (module_name, _, name) = f"{key}={path}", path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{setting}: does not name a class; write module:Class")
    with blamed_on(setting, f"importing {module_name}", "correct it, or name an importable module:Class"):
        module = importlib.import_module(module_name)
    with blamed_on(setting, f"looking {name} up", "correct the module, or name an importable module:Class"):
        found = getattr(module, name, None)
    if found is None:
        classes = [known for known, value in vars(module).items() if isinstance(value, type)]
        near = get_close_matches(name, classes, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "correct the name, which is module:Class"
        raise ConfigError(f"{setting}: the module {module_name} has no {name!r}; {hint}")
    return found


def describe_exception(error: BaseException, file: str | None = None) -> str:
    """``ValueError: text (reward.py:12)``, on one line.

    The line is the deepest one in ``file``; without any, in the first file beyond ours and the import system's.
    """
    text = " ".join(_text(error).split())[:300]
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = _place(error, file)
    return f"{described} ({place})" if place else described


def _text(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return str(error.msg)  # the rest of its text is the place
    try:
        return str(error)
    except Exception:  # an exception of the user's own may not even be printable
        return ""


def _place(error: BaseException, file: str | None) -> str | None:
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return _shown(error.filename, error.lineno)
    walked = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, number) for frame, number in walked]
    theirs = [name for name, _ in lines if not name.startswith(_NOT_THEIRS) and _BACKPORT not in name]
    if file in theirs:
        chosen: str | None = file
    else:
        chosen = theirs[0] if theirs else None
    if chosen is None:
        return None if file is None or file.startswith(_NOT_THEIRS) else _shown(file, None)
    return _shown(chosen, [number for name, number in lines if name == chosen][-1])


def _shown(file: str, line: int | None) -> str:
    path = Path(file)
    name = f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name
    return name if line is None else f"{name}:{line}"
