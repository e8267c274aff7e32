"""Writes data.jsonl beside this file: 200 prompts such as ``3817>``, whose answer is the largest digit, ``8``."""

import json
import random
from pathlib import Path


def rows() -> list[dict[str, object]]:
    rng = random.Random(0)
    made = []
    for _ in range(200):
        digits = "".join(rng.choices("0123456789", k=rng.randint(3, 6)))
        made.append({"prompt": f"{digits}>", "answer": max(digits), "num_digits": len(digits)})
    return made


if __name__ == "__main__":
    lines = "".join(json.dumps(row) + "\n" for row in rows())
    Path(__file__).with_name("data.jsonl").write_text(lines, encoding="utf-8")
