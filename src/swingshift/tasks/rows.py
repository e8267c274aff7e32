"""A row of any data source, before tokenization."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol

from swingshift.errors import DataError


class SourceOptions(Protocol):
    """What a data source needs to know; ``config.schema.DataConfig`` has it all."""

    prompt_key: str
    answer_key: str
    task_options: dict[str, Any]
    size: int
    seed: int


@dataclass(frozen=True, slots=True)
class Row:
    """``prompt`` is text or chat messages; ``where`` says where the row stands, for error messages."""

    prompt: str | list[dict[str, Any]]
    data: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date, time, Decimal)):
        return str(value)
    raise TypeError(type(value).__name__)


def to_json_values(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The row with JSON values only: dates and decimals become text, anything else is a DataError.

    Prompts travel to worker processes and into checkpoints as JSON.
    """
    result = {}
    for column, value in row.items():
        try:
            result[column] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{where}: column {column!r} holds a value that JSON cannot express ({error}); "
                "drop the column or store it as text"
            ) from error
    return result
