"""One wording for "there is no such name" in every error message of this ring."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, known: Iterable[str], max_listed: int = 12) -> str:
    """``did you mean 'a' or 'b'?`` if something is near, else the known names (at most ``max_listed``)."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    more = f" and {len(names) - max_listed} more" if len(names) > max_listed else ""
    return "there is " + ", ".join(names[:max_listed]) + more
