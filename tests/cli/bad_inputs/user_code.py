"""Python of the user's own that is wrong: policies and replay buffers. Reward functions are in ``training``."""

from __future__ import annotations

from itertools import count

from .case import Case, Content, bad

_POLICY = "async_training.dynamic_schedule_policy"
_BUFFER = "trainer.v1.replay_buffer.path"
_NUMBERS = count()

_CLASS = """\
from swingshift.schedule import StaticFullyAsyncPolicy

class Mine(StaticFullyAsyncPolicy):
    def __init__(self, deactivate_ratio, only_hybrid):
        {body}
"""

BROKEN_MODULES: list[tuple[Content, tuple[str, ...]]] = [
    ("class Mine\n    pass\n", ("SyntaxError", "{module}.py:1")),
    ("x = 1\nclass Mine(Missing):\n    pass\n", ("NameError", "'Missing'", "{module}.py:2")),
    ("def build():\n    return {}['ratio']\n\nMine = build()\n", ("KeyError: 'ratio'", "{module}.py:2")),
    ("import no_such_module_anywhere\n", ("no_such_module_anywhere", "{module}.py:1")),
    ("raise RuntimeError('two\\nlines')\n", ("RuntimeError: two lines", "{module}.py:1")),
    ("import sys\nsys.exit(0)\n", ("SystemExit", "{module}.py:2")),
    ("exec('def f(:')\n", ("SyntaxError", "{module}.py:1")),
    ("class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\n\nraise Odd\n", ("Odd", "{module}.py:5")),
    (b"\xff\xfe\x00", ("Error",)),
    ("Other = 3\n", ("no 'Mine'",)),
    ("def __getattr__(name):\n    raise LookupError(name)\n", ("LookupError: Mine", "{module}.py:2")),
]
BROKEN_CLASSES: list[tuple[str, tuple[str, ...]]] = [
    ("{}['ratio']", ("KeyError: 'ratio'", "{module}.py:5")),
    ("open('no/such/file')", ("FileNotFoundError", "{module}.py:5")),
    ("raise SystemExit(0)", ("SystemExit: 0", "{module}.py:5")),
    ("super().__init__(wrong=1)", ("TypeError", "{module}.py:5")),
    ("raise ValueError('the ratio is odd')", ("the ratio is odd", "{module}.py:5")),
]


def own(command: str, key: str, content: Content, parts: tuple[str, ...]) -> Case:
    """A module with a name of its own: Python imports each name once in a process."""
    module = f"night_shift_{next(_NUMBERS)}"
    wanted = [part.format(module=module) for part in parts]
    line = f"{command} {key}={module}:Mine"
    return bad(line, f"error: {key}={module}:Mine: ", "; correct ", *wanted, files={f"{module}.py": content})


_STEPS = "trainer.v1.trainer_mode=separate_async async_training.use_dynamic_resource_scheduling=false"

CASES: list[Case] = [
    *(own("config check", _POLICY, content, parts) for content, parts in BROKEN_MODULES),
    *(own("config check", _POLICY, _CLASS.format(body=body), parts) for body, parts in BROKEN_CLASSES),
    own("train --dry-run", _POLICY, *BROKEN_MODULES[0]),
    own("train", _POLICY, *BROKEN_MODULES[1]),
    own("plan --memory", _POLICY, *BROKEN_MODULES[2]),
    own("simulate rollout-bound-8", _POLICY, *BROKEN_MODULES[1]),
    own("simulate rollout-bound-8", _POLICY, _CLASS.format(body="{}['ratio']"), BROKEN_CLASSES[0][1]),
    *(own(f"config check {_STEPS}", _BUFFER, content, parts) for content, parts in BROKEN_MODULES),
    own(f"train --dry-run {_STEPS}", _BUFFER, *BROKEN_MODULES[0]),
    own(f"train {_STEPS}", _BUFFER, *BROKEN_MODULES[1]),
]
