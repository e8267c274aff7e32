"""Reward with partial credit: even a model that has learned nothing yet gets different scores to learn from."""


def reward(prompt: str, response: str, answer, **extra) -> float:
    """1 for the largest digit of the prompt and nothing else; less for coming close.

    ``extra`` holds the row's other columns, here ``num_digits``.
    """
    first, rest = response[:1], response[1:]
    if first == answer:
        score = 1.0
    elif first and first in prompt[:-1]:
        score = 0.4
    elif first in list("0123456789"):
        score = 0.2
    else:
        return 0.0
    return score - (0.1 if rest else 0.0)
