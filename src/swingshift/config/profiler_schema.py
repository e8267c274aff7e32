"""Section ``global_profiler``: which steps are profiled, and how."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator

from swingshift.config.section import Section


class ProfilerConfig(Section):
    """Profiles of chosen steps, for those who make training or generation faster."""

    tool: Literal["torch"] | None = Field(default=None, description="`torch`: torch's profiler; null: none.")
    steps: list[PositiveInt] = Field(
        default=[], description="Steps to profile, numbered as `training/global_step` in the metrics; the first is 1."
    )
    save_path: str | None = Field(
        default=None, min_length=1, description="Folder of the traces; null: `profile` in the run directory."
    )
    record_shapes: bool = Field(default=False, description="Record the shapes of what operators get.")
    with_stack: bool = Field(
        default=False, description="Record which line of Python called each operator. Slow, and large traces."
    )
    num_decode_steps: int = Field(
        default=200, ge=0, description="Decode steps of a profiled step traced on each rollout device; 0: none."
    )

    @field_validator("steps", mode="before")
    @classmethod
    def _null_is_no_step(cls, steps: Any) -> Any:
        return [] if steps is None else steps
