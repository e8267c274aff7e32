"""The log of groups trained on, and how it is cut back for a run that goes on."""

from __future__ import annotations

import json
import logging
import resource
from pathlib import Path

import pytest

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.observe.consumed import ConsumedLog
from swingshift.observe.line_file import LineFile
from swingshift.observe.samples import SampleLog

SAMPLE = Sample((1, 2, 3), (-0.1,) * 3, ((4, 3),), FinishReason.LENGTH, reward=0.5)


def groups(*ids: int) -> list[SampleGroup]:
    return [SampleGroup(i, Prompt(f"0-{i}", (7, 8)), (SAMPLE,) * 16, submit_version=4) for i in ids]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "consumed.jsonl"


def written(path: Path, *sizes: int) -> ConsumedLog:
    """A log of optimizer passes over so many groups each."""
    log = ConsumedLog(path)
    first = 0
    for version, size in enumerate(sizes):
        log.log(groups(*range(first, first + size)), version)
        first += size
    return log


def test_a_line_is_ids_and_numbers_and_on_disk_at_once(path: Path) -> None:
    written(path, 2, 1)
    assert lines(path) == [
        {"cycle": 1, "version": 0, "num_consumed": 2, "group_ids": [0, 1], "prompt_uids": ["0-0", "0-1"]},
        {"cycle": 2, "version": 1, "num_consumed": 3, "group_ids": [2], "prompt_uids": ["0-2"]},
    ]


def test_a_line_grows_by_a_few_bytes_a_group(path: Path) -> None:
    written(path, 4096)
    assert path.stat().st_size < 4096 * 20


@pytest.mark.parametrize(("kept", "expected"), [(0, []), (2, [2]), (3, [2, 3]), (4, [2, 3]), (6, [2, 3, 6])])
def test_what_came_after_the_checkpoint_is_cut_off(path: Path, kept: int, expected: list[int]) -> None:
    """Also from the middle of a pass, where no checkpoint is ever taken: of a line nothing is kept then."""
    written(path, 2, 1, 3).close()
    log = ConsumedLog(path)
    log.go_on(kept)
    assert [line["num_consumed"] for line in lines(path)] == expected
    log.log(groups(10, 11), version=9)
    assert [line["num_consumed"] for line in lines(path)] == [*expected, kept + 2]


def test_the_samples_are_cut_back_to_the_same_cycle(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    log = SampleLog(path, str, groups_per_cycle=2)
    for cycle in (1, 2, 3):
        log.log(cycle, groups(10 * cycle, 10 * cycle + 1, 10 * cycle + 2))
    log.close()
    log = SampleLog(path, str, groups_per_cycle=2)
    log.go_on(2)
    log.log(3, groups(90))
    assert [line["group_id"] for line in lines(path)] == [10, 11, 20, 21, 90]


def test_lines_longer_than_what_is_read_at_once_are_cut_off_too(path: Path) -> None:
    written(path, 1, 20_000, 20_000, 1).close()
    ConsumedLog(path).go_on(20_001)
    assert [line["num_consumed"] for line in lines(path)] == [1, 20_001]


def test_a_torn_line_and_what_nobody_wrote_go_with_the_rest(path: Path) -> None:
    written(path, 2, 2).close()
    path.write_bytes(path.read_bytes() + b'\xff\x00 {\n[4]\n{"num_cons')
    ConsumedLog(path).go_on(2)
    assert [line["num_consumed"] for line in lines(path)] == [2]


def test_a_folder_that_begins_with_the_resume_is_complete(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = ConsumedLog(path)
    log.go_on(40)
    log.log(groups(40), version=5)
    assert [line["num_consumed"] for line in lines(path)] == [41] and caplog.messages == []


def test_lines_that_were_lost_are_missed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(path, 2, 2).close()
    ConsumedLog(path).go_on(7)
    assert "knows of 4 groups only, but the checkpoint was trained on 7" in caplog.text
    assert [line["num_consumed"] for line in lines(path)] == [2, 4]


def test_a_file_with_other_things_in_it_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text('{"num_consumed": "many"}\n')
    ConsumedLog(path).go_on(7)
    assert path.read_text() == '{"num_consumed": "many"}\n' and "consumed log failed" in caplog.text


@pytest.fixture
def limit_size():
    """Sets how large a file may become: what is written beyond fails, like on a full disk, after all that fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (before[1] if size is None else size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [1, 2_000])
def test_a_full_disk_is_warned_about_once_and_loses_nothing(
    path: Path, size: int, limit_size, caplog: pytest.LogCaptureFixture
) -> None:
    log = written(path, size)
    with caplog.at_level(logging.WARNING):
        limit_size(path.stat().st_size + 50)
        log.log(groups(*range(10, 10 + size)), version=1)
        log.log(groups(*range(20, 20 + size)), version=2)
        torn = path.read_bytes()
        limit_size(None)
    assert len(torn.splitlines()) == 2 and not torn.endswith(b"\n")
    assert caplog.messages == ["consumed log failed; training goes on without it"]
    log.flush()
    assert [line["num_consumed"] for line in lines(path)] == [size, 2 * size, 3 * size]


def test_a_disk_that_stays_full_does_not_keep_a_file_open(path: Path, limit_size) -> None:
    file = LineFile(path, flush_each=False)
    file.write({"a": 1})
    limit_size(2)
    with pytest.raises(OSError, match="too large"):
        file.close()
    limit_size(None)
    with pytest.raises(ValueError, match="closed"):
        file.write({"a": 2})
