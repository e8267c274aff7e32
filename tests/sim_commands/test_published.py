"""The published experiment: its table of bottlenecks, the fit, and the prediction."""

import re
import statistics
from functools import cache
from pathlib import Path

import pytest

from swingshift.sim.fit import fit_rollout, fit_speeds
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import with_lending

PRESET = "qwen3.5-35b-a3b-dapo"
STATIC = "async_training.use_dynamic_resource_scheduling=false"
WIDE = ("cluster.trainer_devices=8", "cluster.rollout_devices=24")
CYCLES = 60
TOTAL_16_16_S, TOTAL_8_24_S, TOTAL_DYNAMIC_S = 6.546 * 3600, 5.4 / (1 - 0.153) * 3600, 5.4 * 3600


@cache
def run(*overrides: str):
    queue = []
    scenario = load_scenario(PRESET, overrides)
    summary = run_scenario(scenario, on_report=lambda r: queue.append(r.row["dynamic_resource/mq_size"]))
    return summary, statistics.mean(queue)


def test_the_fit_reproduces_the_static_totals():
    assert run(STATIC)[0]["wall_s"] == pytest.approx(TOTAL_16_16_S, rel=0.01)
    assert run(STATIC, *WIDE)[0]["wall_s"] == pytest.approx(TOTAL_8_24_S, rel=0.01)


def test_the_prediction_is_near_the_published_run():
    """Nothing was tuned on it: 5% is what the model gives, not what it was made to give."""
    assert run()[0]["wall_s"] == pytest.approx(TOTAL_DYNAMIC_S, rel=0.05)


def test_the_published_table():
    narrow, narrow_queue = run(STATIC)
    wide, wide_queue = run(STATIC, *WIDE)
    dynamic, dynamic_queue = run()
    # Groups that can be left when a cycle ends: the budget of 96 without the 64 of the cycle.
    cap = 32
    assert narrow_queue < 0.35 * cap < 0.9 * cap < wide_queue
    assert narrow_queue < dynamic_queue < wide_queue
    assert narrow["rollout_resource_utilization"] > 0.95
    assert wide["rollout_resource_utilization"] < 0.75
    assert wide["rollout_resource_utilization"] + 0.1 < dynamic["rollout_resource_utilization"]
    assert narrow["train_resource_utilization"] < 0.6
    assert wide["train_resource_utilization"] > 0.95
    assert narrow["train_resource_utilization"] + 0.3 < dynamic["train_resource_utilization"]
    assert dynamic["resource_utilization"] > max(narrow["resource_utilization"], wide["resource_utilization"]) + 0.05
    assert dynamic["wall_s"] < 0.9 * min(narrow["wall_s"], wide["wall_s"])


def test_a_coarse_fit_finds_the_speeds_of_the_preset_again():
    cycles = 6
    short = f"workload.num_cycles={cycles}"
    start = ["efficiency.train_speed=0.6", "efficiency.rollout_speed=0.5"]
    fit = fit_speeds(
        (load_scenario(PRESET, [STATIC, short, *start]), TOTAL_16_16_S * cycles / CYCLES),
        (load_scenario(PRESET, [STATIC, short, *start, *WIDE]), TOTAL_8_24_S * cycles / CYCLES),
        tolerance=0.01,
    )
    assert max(map(abs, fit.errors)) <= 0.01
    efficiency = load_scenario(PRESET).efficiency
    # A short run has its start and end in full, so it needs somewhat faster devices.
    assert fit.speeds.train == pytest.approx(efficiency.train_speed, rel=0.15)
    assert fit.speeds.rollout == pytest.approx(efficiency.rollout_speed, rel=0.1)


DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator.md"


def documented(start: str) -> list[float]:
    """The numbers of the table rows that start so, row after row."""
    rows = [
        line[len(start) :] for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(start)
    ]
    return [float(number.replace(",", "")) for row in rows for number in re.findall(r"\d[\d,]*(?:\.\d+)?", row)]


def test_the_document_has_what_the_shipped_presets_give():
    for start, overrides in (
        ("| 16+16 without lending |", (STATIC,)),
        ("| 8+24 without lending |", (STATIC, *WIDE)),
        ("| 16+16 with lending |", ()),
    ):
        summary, queue = run(*overrides)
        # Published hours, ours (and how far off, or where the former come from); then the table of bottlenecks.
        numbers = documented(start)
        assert f"{summary['wall_s'] / 3600:.3f}" in {f"{number:.3f}" for number in numbers[1:-4]}
        shares = (f"{name}resource_utilization" for name in ("rollout_", "train_", ""))
        assert numbers[-4:] == [round(queue), *(round(100 * summary[share]) for share in shares)]


def test_two_totals_that_contradict_each_other_are_no_fit():
    scenario = load_scenario(PRESET, [STATIC, "workload.num_cycles=1"])
    with pytest.raises(ValueError, match="no fit"):
        fit_speeds((scenario, 1000.0), (scenario, 2000.0), max_rounds=4)


def test_the_run_without_switching_of_the_other_preset():
    cycles = 6
    scenario = with_lending(load_scenario("separate-async-24xh100", [f"workload.num_cycles={cycles}"]), False)
    fit = fit_rollout(scenario, 18.80 * 3600 * cycles / 150, tolerance=0.01)
    assert fit.speeds.rollout == pytest.approx(scenario.efficiency.rollout_speed, rel=0.1)
    assert run_scenario(scenario)["tokens_per_s"] == pytest.approx(15_150, rel=0.05)


def test_lending_by_default_is_slower_where_training_is_the_bottleneck():
    short = "workload.num_cycles=12"
    scenario = load_scenario("lending-hurts-32", [short])
    static = load_scenario("lending-hurts-32", [short, STATIC])
    lent, alone = run_scenario(scenario), run_scenario(static)
    assert alone["train_resource_utilization"] > 0.85
    assert lent["wall_s"] > 1.1 * alone["wall_s"]
    assert lent["num_activations"] > 0
