"""What all sections of the configuration have in common."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads `on`, `yes` and `true` as booleans, which pydantic would take for the number 1.
        if isinstance(value, bool) and _is_numeric(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("is a truth value, not a number")
        return value


def _is_numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in get_args(annotation))
