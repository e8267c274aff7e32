"""Workloads are functions of seed, group and index, and have the shape they promise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

import pytest

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.errors import ConfigError
from swingshift.runtime.ports import RewardFn
from swingshift.sim.responses import Lengths
from swingshift.sim.workload import (
    BernoulliReward,
    constant_lengths,
    constant_reward,
    drifting_lengths,
    empirical_lengths,
    heavy_tailed_lengths,
    lognormal_lengths,
    read_lengths,
    tool_pauses,
)

KINDS: dict[str, Callable[[int], Lengths]] = {
    "lognormal": lambda seed: lognormal_lengths(1000, 0.8, 8192, seed),
    "heavy-tailed": lambda seed: heavy_tailed_lengths(1000, 0.5, 32_768, seed=seed),
    "drifting": lambda seed: drifting_lengths(500, 4000, 400, 0.5, 8192, seed),
    "empirical": lambda seed: empirical_lengths([10, 20, 30, 4000], seed=seed),
}
KEYS = [(str(group), index) for group in range(400) for index in range(4)]


def draws(lengths: Lengths) -> list[int]:
    return [lengths(*key) for key in KEYS]


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_depend_on_seed_group_and_index_only(kind: str) -> None:
    lengths = KINDS[kind](1)
    forwards = draws(lengths)
    backwards = [lengths(*key) for key in reversed(KEYS)]
    assert forwards == backwards[::-1] == draws(KINDS[kind](1)) != draws(KINDS[kind](2))
    assert len(set(forwards)) > 3 and min(forwards) >= 1


def test_lognormal_lengths_have_their_median_and_are_clipped() -> None:
    lengths = draws(lognormal_lengths(1000, 0.8, 3000))
    assert median(lengths) == pytest.approx(1000, rel=0.1)
    share = sum(n == 3000 for n in lengths) / len(lengths)
    assert max(lengths) == 3000 and share == pytest.approx(0.085, abs=0.03), "P(z > ln 3 / 0.8)"


def test_heavy_tails_carry_much_of_the_work() -> None:
    light, heavy = (sorted(draws(KINDS[kind](0))) for kind in ("lognormal", "heavy-tailed"))
    assert median(heavy) == pytest.approx(1000, rel=0.15)
    assert max(heavy) == 32_768 > max(light)
    top = len(KEYS) // 50
    assert sum(heavy[-top:]) / sum(heavy) > 1.5 * sum(light[-top:]) / sum(light)
    assert sum(n > 2000 for n in heavy) / len(heavy) == pytest.approx(0.1 + 0.9 * 0.083, abs=0.04)


@pytest.mark.parametrize("linear", [True, False])
def test_drifting_lengths_go_from_one_median_to_the_other_and_stay(linear: bool) -> None:
    lengths = drifting_lengths(500, 4000, 1001, 0.0, 8192, linear=linear)
    middle = 2250 if linear else round(500 * 8**0.5)
    assert [lengths(str(g), 0) for g in (0, 500, 1000, 5000)] == [500, middle, 4000, 4000]
    assert lengths("validation-7", 0) == 500
    assert drifting_lengths(500, 4000, 1, 0.0, 8192)("0", 0) == 500


def test_empirical_lengths_come_from_the_file_each_as_often(tmp_path: Path) -> None:
    as_list, as_lines = tmp_path / "a.json", tmp_path / "b.jsonl"
    as_list.write_text(json.dumps([10, 20, 30, 4000]))
    as_lines.write_text("10\n20\n\n30\n4000\n")
    assert read_lengths(as_list) == read_lengths(as_lines) == [10, 20, 30, 4000]
    drawn = draws(empirical_lengths(read_lengths(as_list), longest=100))
    assert {n: drawn.count(n) for n in set(drawn)} == pytest.approx(dict.fromkeys((10, 20, 30, 100), 400), rel=0.15)


@pytest.mark.parametrize("text", ["", "[]", "[1, 2.5]", "[1, true]", "[0]", "-3", "many", "[1, 2", '{"a": 1}', "1 2"])
def test_bad_length_files_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lengths.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"lengths\.json"):
        read_lengths(file)


def test_unreadable_length_files_and_empty_lists_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_lengths(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary"):
        read_lengths(tmp_path / "binary")
    with pytest.raises(ConfigError, match="at least one"):
        empirical_lengths([])
    with pytest.raises(ConfigError, match="tail_share=2"):
        heavy_tailed_lengths(100, 0.5, 1000, tail_share=2)
    with pytest.raises(ConfigError, match="num_turns=0"):
        tool_pauses(0, 1.0)


def test_tool_pauses_cut_a_response_into_equal_turns() -> None:
    pauses = tool_pauses(4, 2.0, sigma=0.5, longest_wait_s=5.0, seed=3)
    assert [at for at, _ in pauses("7", 0, 100)] == [25, 50, 75]
    assert [at for at, _ in pauses("7", 0, 3)] == [1, 2], "never more turns than tokens"
    assert pauses("7", 0, 1) == ()
    assert pauses("7", 0, 100) == tool_pauses(4, 2.0, 0.5, 5.0, 3)("7", 0, 100) != pauses("7", 1, 100)
    waits = [wait for group in range(300) for _, wait in pauses(str(group), 0, 100)]
    assert median(waits) == pytest.approx(2.0, rel=0.15) and max(waits) <= 5.0


def score(reward: RewardFn, group_id: int, num_samples: int = 8) -> tuple[float, ...]:
    sample = Sample((), (), (), FinishReason.STOP)
    return asyncio.run(reward.score(SampleGroup(group_id, Prompt("p", (0,)), (sample,) * num_samples, 0)))


def test_rewards() -> None:
    assert score(constant_reward(0.25), 3) == (0.25,) * 8
    reward = BernoulliReward(0.3, spread=0.2, seed=1)
    by_group = [score(reward, group) for group in range(400)]
    assert by_group == [score(reward, group) for group in range(400)]
    assert {r for scores in by_group for r in scores} == {0.0, 1.0}
    assert mean(r for scores in by_group for r in scores) == pytest.approx(0.3, abs=0.03)
    rates = [mean(score(BernoulliReward(0.5, 0.5), group, 200)) for group in range(50)]
    assert min(rates) < 0.2 and max(rates) > 0.8, "groups differ"
    assert score(BernoulliReward(1.0), 0) == (1.0,) * 8 and score(BernoulliReward(0.0), 0) == (0.0,) * 8
    with pytest.raises(ConfigError, match=r"chance=1\.5"):
        BernoulliReward(1.5)


def test_constant_lengths() -> None:
    assert set(draws(constant_lengths(7))) == {7}
