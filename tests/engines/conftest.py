from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from engine_models import make_model, open_engine

from swingshift.engines.torch_engine import TorchEngine


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> Any:
    """A model no test changes."""
    return make_model()


@pytest.fixture
def engines() -> Iterator[Callable[..., TorchEngine]]:
    """Opens engines that are closed after the test."""
    opened: list[TorchEngine] = []

    def build(model: Any, **changes: Any) -> TorchEngine:
        opened.append(open_engine(model, **changes))
        return opened[-1]

    yield build
    for engine in opened:
        engine.close()
