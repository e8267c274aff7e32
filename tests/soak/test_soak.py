"""Thousands of random runs with injected faults, as CI does it, and what the command prints about them."""

from __future__ import annotations

import re

import pytest

from swingshift.cli import main
from swingshift.sim.fault_draw import draw_case
from swingshift.sim.fault_plan import FaultKind
from swingshift.sim.soak import describe, points, run_seeds, soak
from swingshift.sim.soak_run import run_case
from swingshift.sim.soak_world import Mode

CI_SEEDS = range(3000)


def test_thousands_of_seeds_lose_nothing_hang_nowhere_and_break_no_invariant() -> None:
    report = soak(CI_SEEDS)
    assert not report.failures, describe(report) + f"the first: swingshift soak --replay {min(report.failures)}"
    assert report.num_passed == len(CI_SEEDS)
    assert len(report.points) > 600
    modes, kinds = {mode for _, _, mode in report.points}, {kind for _, kind, _ in report.points}
    assert modes == {mode.value for mode in Mode}
    assert kinds >= {
        kind.value for kind in FaultKind if kind not in (FaultKind.CRASH, FaultKind.STOP, FaultKind.CANCEL)
    }
    assert kinds >= {f"{kind} at a moment" for kind in ("crash", "stop", "cancel", "die", "freeze")}
    errors = ("TrainerError", "NoReplicaError", "TransitionError", "TooManyFailuresError", "CheckpointError")
    assert all(report.outcomes[name] > 10 for name in (*errors, "DataError", "StalledError", "crashed", "stopped"))


def test_a_seed_is_the_same_case_and_the_same_run_every_time() -> None:
    for seed in range(40):
        case = draw_case(seed)
        assert case == draw_case(seed)
        first, second = run_case(case), run_case(case)
        assert (first.outcomes, first.fired, first.num_events) == (second.outcomes, second.fired, second.num_events)


def test_processes_share_the_seeds_and_add_up_to_the_same() -> None:
    alone, together = run_seeds(range(120)), soak(range(120), 2)
    assert (together.num_passed, together.outcomes) == (alone.num_passed, alone.outcomes)
    assert (together.points, together.num_events) == (alone.points, alone.num_events)


def test_a_fault_point_is_a_call_whoever_it_was_made_to() -> None:
    names = {where for seed in range(200) for where, _, _ in points(draw_case(seed), run_case(draw_case(seed)))}
    assert {"standalone.generate", "trainer.train", "run", "store.save"} <= names
    assert not [name for name in names if re.search(r"\d", name)]


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_ends_with_the_line_that_scripts_look_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--seeds", "30", "--start", "7", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "30 passed, 0 failed"
    assert re.fullmatch(r"30 seeds in [\d.]+ s \(\d+ seeds/s\), \d+ events", lines[0])
    assert re.fullmatch(r"\d+ distinct fault points \(port call × kind × mode\)", lines[-2])


def test_a_failing_seed_ends_with_exit_code_1_a_short_trace_and_how_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swingshift.core.staleness import StalenessBudget

    monkeypatch.setattr(StalenessBudget, "reset", lambda self, num_outstanding: None)
    assert main(["soak", "--seeds", "20", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    num_passed, num_failed = map(int, re.findall(r"^(\d+) passed, (\d+) failed$", out, re.MULTILINE)[0])
    assert num_failed > 0 and num_passed + num_failed == 20
    replay = re.findall(r"replay: swingshift soak --replay '(.*)'", out)[0]
    trace = out[: out.index(replay)]
    assert "AssertionError" in trace and "last port calls:" in trace and "waiting:" in trace
    assert len(trace.splitlines()) < 40
    assert main(["soak", "--replay", replay]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"
    monkeypatch.undo()
    assert main(["soak", "--replay", replay]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "--seeds=0"),
        (["--start", "-1"], "--start=-1"),
        (["--jobs", "0"], "--jobs=0"),
        (["--replay", "mode=sideways"], "mode=sideways"),
        (["--replay", "num_promts=3"], "num_promts"),
        (["--replay", "num_prompts=three"], "num_prompts=three"),
        (["--replay", "mode=sync; trainer.train=hang"], "trainer.train=hang"),
        (["--replay", "mode=sync; trainer.train#1=burn"], "trainer.train#1=burn"),
        (["--replay", "mode=sync; trainer@1.0/1=oom"], "trainer@1.0/1=oom"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["soak", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and len(captured.err.splitlines()) == 1
