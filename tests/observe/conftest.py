from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_run import FakeRun


@pytest.fixture
def fake_run(tmp_path: Path) -> Callable[..., FakeRun]:
    def build(num_cycles: int, **options: int) -> FakeRun:
        run = FakeRun(tmp_path, **options)
        run.play(num_cycles)
        return run

    return build
