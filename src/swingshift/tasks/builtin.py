"""Built-in tasks small enough for a model that is trained from nothing in seconds.

Prompts are drawn at random, with repeats where a task has few different ones. Train and val prompts never
overlap, whatever the seeds: a checksum of the prompt says which of the two it belongs to (1 in 10 is val).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

from swingshift.errors import ConfigError
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.tasks.names import suggest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["train", "val"]
Example = dict[str, str]
"""``prompt``, ``answer`` (what the reward compares with) and ``solution`` (what a model should write)."""

VAL_ONE_IN = 10


class Task(Protocol):
    """A generated task."""

    @property
    def reward_name(self) -> str:
        """The built-in reward that fits it."""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A fresh tokenizer that covers every character of the task."""

    def examples(self, num: int, seed: int, split: Split = "train") -> list[Example]:
        """``num`` examples; the same arguments always give the same ones."""


@dataclass(frozen=True)
class SortDigits:
    """``52814>`` → ``12458``. Repeated digits (``unique=False``) make it much harder to learn."""

    min_digits: int = 4
    max_digits: int = 8
    unique: bool = True

    def __post_init__(self) -> None:
        _require(2 <= self.min_digits <= 40, "min_digits", self.min_digits, "use 2 to 40")
        _require(
            self.min_digits <= self.max_digits <= 40,
            "max_digits",
            self.max_digits,
            f"use {self.min_digits} (min_digits) to 40",
        )
        _require(
            not self.unique or self.max_digits <= 10, "max_digits", self.max_digits, "there are 10 unique digits"
        )

    @property
    def reward_name(self) -> str:
        return "exact_match"

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return char_tokenizer()

    def examples(self, num: int, seed: int, split: Split = "train") -> list[Example]:
        return _draw(self._example, num, seed, split)

    def _example(self, rng: random.Random) -> Example:
        length = rng.randint(self.min_digits, self.max_digits)
        draw = rng.sample if self.unique else rng.choices
        digits = "".join(draw("0123456789", k=length))
        answer = "".join(sorted(digits))
        return {"prompt": f"{digits}>", "answer": answer, "solution": answer}


@dataclass(frozen=True)
class Add:
    """``27+58=`` → ``85``; with ``scratch`` the model first writes the column sums: ``7+8=15,2+5+1=8>85``."""

    digits: int = 2
    scratch: bool = False

    def __post_init__(self) -> None:
        _require(1 <= self.digits <= 18, "digits", self.digits, "use 1 to 18")

    @property
    def reward_name(self) -> str:
        return "final_answer" if self.scratch else "exact_match"

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return char_tokenizer()

    def examples(self, num: int, seed: int, split: Split = "train") -> list[Example]:
        return _draw(self._example, num, seed, split)

    def _example(self, rng: random.Random) -> Example:
        low = 0 if self.digits == 1 else 10 ** (self.digits - 1)
        a, b = (rng.randint(low, 10**self.digits - 1) for _ in range(2))
        answer = str(a + b)
        solution = f"{_column_sums(a, b)}>{answer}" if self.scratch else answer
        return {"prompt": f"{a}+{b}=", "answer": answer, "solution": solution}


def _column_sums(a: int, b: int) -> str:
    steps, carry = [], 0
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(x) + int(y) + carry
        steps.append(f"{x}+{y}+{carry}={total}" if carry else f"{x}+{y}={total}")
        carry = total // 10
    return ",".join(steps)


def _draw(make: Any, num: int, seed: int, split: Split) -> list[Example]:
    # Seeding with a string is stable across processes and Python versions.
    rng = random.Random(f"{seed}-{split}")
    examples: list[Example] = []
    while len(examples) < num:
        example = make(rng)
        if split_of(example["prompt"]) == split:
            examples.append(example)
    return examples


def split_of(prompt: str) -> Split:
    """Which split a generated prompt belongs to."""
    return "val" if zlib.crc32(prompt.encode()) % VAL_ONE_IN == 0 else "train"


def _require(condition: bool, option: str, value: object, remedy: str) -> None:
    if not condition:
        raise ConfigError(f"data.task_options.{option}={value!r} is out of range; {remedy}")


BUILTIN_TASKS: dict[str, type[SortDigits] | type[Add]] = {"sort_digits": SortDigits, "add": Add}


def get_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """The built-in task ``name`` with the options of ``data.task_options``. Raises ConfigError."""
    if name not in BUILTIN_TASKS:
        raise ConfigError(
            f"data.train_files: no built-in task {name!r}; {suggest(name, BUILTIN_TASKS)} (as builtin:NAME)"
        )
    task = BUILTIN_TASKS[name]
    kinds = {f.name: type(f.default) for f in fields(task)}
    for option, value in (options or {}).items():
        if option not in kinds:
            raise ConfigError(
                f"data.task_options.{option}: task {name!r} has no such option; {suggest(option, kinds)}"
            )
        if type(value) is not kinds[option]:
            raise ConfigError(f"data.task_options.{option}={value!r} must be of type {kinds[option].__name__}")
    return task(**(options or {}))
