"""The metric page is what the tables say, and the tables are what runs report."""

import asyncio
from itertools import pairwise
from pathlib import Path

import torch

from swingshift.core.metric_table import METRICS, STEP_METRICS
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup, SamplingParams
from swingshift.observe.metric_document import WORKER_METRICS, to_markdown
from swingshift.runtime.validator import Validator
from swingshift.training.losses import SUM_NAMES, ActorLoss
from swingshift.training.metrics import CollectionMetrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SAMPLE = Sample((1,), (0.0,), ((0, 1),), FinishReason.STOP, reward=1.0)
PROMPT = Prompt("0", (1,))


def test_the_committed_page_is_up_to_date():
    made = to_markdown()
    assert made == to_markdown()
    assert PAGE.read_text(encoding="utf-8") == made, (
        "write it again: python -m swingshift.observe.metric_document > docs/metrics.md"
    )


def test_every_metric_has_one_row_of_its_table():
    lines = to_markdown().splitlines()
    names = [line.split("`")[1] for line in lines if line.startswith("| `")]
    definitions = names[names.index("training/global_step") :]
    assert sorted(definitions) == sorted([*METRICS, *STEP_METRICS, *(name for name, _, _ in WORKER_METRICS)])
    for before, line in pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert _num_cells(before) == _num_cells(line), line


def _num_cells(line: str) -> int:
    return line.replace("\\|", "").count("|")


def test_worker_metrics_are_those_that_workers_report():
    documented = {name for name, _, _ in WORKER_METRICS}
    assert documented == {*_of_a_collection(), *_of_a_validation()}


def _of_a_collection() -> dict[str, float]:
    metrics = CollectionMetrics(torch.device("cpu"), decoupled=True)
    one = torch.tensor(1.0)
    metrics.add(ActorLoss(torch.tensor(0.0), torch.ones(len(SUM_NAMES), dtype=torch.float64), one, one))
    metrics.add_step(grad_norm=1.0, lr=0.1)
    return metrics.result([SampleGroup(0, PROMPT, (SAMPLE,), 0)], num_without_signal=0)


def _of_a_validation() -> dict[str, float]:
    class Client:
        async def generate(self, request_id, prompt, num_responses, sampling):
            return (SAMPLE,) * num_responses

    class Reward:
        async def score(self, group):
            return (1.0,) * len(group.samples)

    validator = Validator([PROMPT], Reward(), SamplingParams(max_tokens=1), num_responses=1, max_in_flight=1)
    return asyncio.run(validator(Client(), 1))
