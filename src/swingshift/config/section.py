"""What all sections of the configuration have in common."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

_SMALLEST, _LARGEST = 1e-100, 1e30
"""Sizes of numbers with a fraction. Beyond them sums and products of what a run computes leave what a float holds."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads `on`, `yes` and `true` as booleans, which pydantic would take for the number 1.
        if isinstance(value, bool) and _is_numeric(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("is a truth value, not a number")
        return value

    @field_validator("*")
    @classmethod
    def _can_be_computed_with(cls, value: Any, info: ValidationInfo) -> Any:
        if _is_numeric(cls.model_fields[info.field_name or ""].annotation):
            for number in value if isinstance(value, list | tuple) else (value,):
                _check_size(number)
        return value


def _check_size(number: Any) -> None:
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise ValueError("is out of range; give a whole number that fits into 64 bits")
    if isinstance(number, float) and number != 0 and not _SMALLEST <= abs(number) <= _LARGEST:
        raise ValueError("is out of range; give a number between 1e-100 and 1e30")


def _is_numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in get_args(annotation))
