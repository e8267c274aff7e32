"""JSON in pieces. ``json.dumps`` does not let go of the interpreter before it has encoded everything: a second for a
million tokens, in which nothing else in the process runs, whichever thread it is called in.

Between two pieces other threads get their turn. Together they are what ``json.dumps`` returns, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MOST_ITEMS = 1024
"""Of a list of numbers, in one piece: about a millisecond."""


def json_pieces(value: Any) -> Iterator[str]:
    """``value`` may be anything that ``json.dumps`` takes; raises what that raises."""
    if isinstance(value, dict) and value and all(type(key) is str for key in value):
        opening = "{"
        for key, item in value.items():
            yield f"{opening}{json.dumps(key)}: "
            yield from json_pieces(item)
            opening = ", "
        yield "}"
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict | list | tuple):
        opening = "["
        for item in value:
            yield opening
            yield from json_pieces(item)
            opening = ", "
        yield "]"
    elif isinstance(value, list | tuple) and len(value) > MOST_ITEMS:
        opening = "["
        for start in range(0, len(value), MOST_ITEMS):
            yield opening + json.dumps(value[start : start + MOST_ITEMS])[1:-1]
            opening = ", "
        yield "]"
    else:
        yield json.dumps(value)
