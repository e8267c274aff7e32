"""The built-in reward functions; their signature is that of a user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from swingshift.errors import DataError
from swingshift.tasks.reasoning_gym import score_reasoning_gym


def exact_match(prompt: str, response: str, answer: Any) -> float:
    """1 if the response is ``str(answer)``, white space around both aside; else 0."""
    return float(response.strip() == _text(answer))


def final_answer(prompt: str, response: str, answer: Any) -> float:
    """1 if what follows the last ``>`` (scratch work stands before it) is ``str(answer)``; else 0."""
    return float(response.rpartition(">")[2].strip() == _text(answer))


def math_verify(prompt: str, response: str, answer: Any) -> float:
    """1 if the response's last mathematical expression equals the answer, or its text does; else 0."""
    from math_verify import parse, verify

    if exact_match(prompt, response, answer):
        return 1.0
    gold = _parsed_answer(_text(answer))
    target = parse(response, parsing_timeout=_math_timeout())
    return float(verify(gold, target, timeout_seconds=_math_timeout()))


@lru_cache(maxsize=256)
def _parsed_answer(text: str) -> list[Any]:
    from math_verify import parse

    timeout = _math_timeout()
    # Outside dollars only numbers are found: 1+x would be taken for 1.
    marked = text if "$" in text or "\\boxed" in text else f"${text}$"
    found: list[Any] = parse(marked, parsing_timeout=timeout) or parse(text, parsing_timeout=timeout)
    return found


def _math_timeout() -> Any:
    # math-verify sets SIGALRM, which only a main thread may; elsewhere the pool's deadline must do.
    return 5 if threading.current_thread() is threading.main_thread() else None


def _text(answer: Any) -> str:
    if answer is None:
        raise DataError("the row has no answer to compare with; set data.answer_key to the column that has it")
    return str(answer).strip()


BUILTIN_REWARDS: dict[str, Callable[..., float]] = {
    "exact_match": exact_match,
    "final_answer": final_answer,
    "math_verify": math_verify,
    "reasoning_gym": score_reasoning_gym,
}
INLINE_REWARDS = frozenset({"exact_match", "final_answer"})
"""They take microseconds, less than handing them to another process would."""
