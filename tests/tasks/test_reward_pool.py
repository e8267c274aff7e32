import asyncio
import logging
import subprocess
import sys
import time

import psutil
import pytest

from swingshift.config.schema import DataConfig, RewardConfig
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.errors import ConfigError, DataError
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.tasks.reward_pool import RewardPool, response_texts
from swingshift.tasks.rewards import RewardSpec

TOKENIZER = char_tokenizer()
PROMPT = Prompt("0-0", (5,), {"prompt": "1+1=", "answer": "2", "data_source": "x", "level": 7})

# One function whose response says what it shall do, so that few processes serve many tests.
FUNCTION = """
import os, time, subprocess
print("file read")

def reward(prompt, response, answer, level):
    assert (prompt, answer, level) == ("1+1=", "2", 7)
    word, _, rest = response.partition(" ")
    file = os.path.join(os.path.dirname(__file__), rest)
    if word == "print":
        print("hello", rest)
        os.write(1, b"to the file descriptor\\n")
    elif word == "raise":
        raise ValueError("bad " + rest)
    elif word == "hang":
        open(file, "w").write(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    elif word == "die":
        os._exit(3)
    elif word == "once":
        if not os.path.exists(file):
            open(file, "w").close()
            os._exit(4)
    elif word == "nan":
        return float("nan")
    elif word == "str":
        return "1.0"
    elif word == "input":
        return len(input())
    elif word == "pid":
        time.sleep(0.05)
        return os.getpid()
    return len(response)
"""


def group_of(*texts, tail=()):
    ids = [(*TOKENIZER(t)["input_ids"], *tail) if t else tuple(tail) for t in texts]
    samples = [Sample(i, (0.0,) * len(i), ((0, len(i)),) if i else (), FinishReason.STOP) for i in ids]
    return SampleGroup(0, PROMPT, tuple(samples), 0)


@pytest.fixture
def run_pool(tmp_path):
    """Runs an async function with a pool; afterwards no process may be left."""
    (tmp_path / "reward.py").write_text(FUNCTION)

    def run(body, **options):
        async def main():
            pool = RewardPool(RewardSpec(path=f"{tmp_path}/reward.py:reward"), TOKENIZER, **options)

            async def score(*responses):
                return await pool.score(group_of(*responses))

            try:
                return await body(pool, score)
            finally:
                await pool.close()

        before = set(psutil.Process().children(recursive=True))
        result = asyncio.run(main())
        left = set(psutil.Process().children(recursive=True)) - before
        assert not left, left
        return result

    return run


def test_scores_prints_and_bad_values_on_one_worker(run_pool, caplog, capfd):
    async def body(pool, score):
        await pool.check(PROMPT)
        assert await score("abc", "", "print x y") == (3.0, 0.0, 9.0)
        for response, shown in [
            ("raise luck", "raised ValueError: bad luck (reward.py:13)"),
            ("nan", "returned nan; return a finite number"),
            ("str", "returned '1.0' of type str"),
            ("input", "raised EOFError"),
        ]:
            with pytest.raises(DataError) as error:
                await score("fine", response)
            text = str(error.value)
            assert text.startswith("reward.path=") and shown in text and "(tried 2 times)" in text, text
            assert "\n" not in text and "'1+1='" in text
        first, second = await score("pid", "pid")
        assert first == second, "none of this cost the worker"

    with caplog.at_level(logging.INFO):
        run_pool(body)
    assert "printed: file read" in caplog.text and "printed: hello x y" in caplog.text
    out, err = capfd.readouterr()
    assert out == "" and "to the file descriptor" in err


def test_a_worker_that_hangs_is_killed_with_its_children_and_replaced(run_pool, tmp_path):
    async def body(pool, score):
        (first,) = await score("pid")
        note = tmp_path / "child"
        with pytest.raises(DataError) as error:
            await score("hang child")
        assert "did not return within reward.timeout_s=0.5 seconds" in str(error.value)
        assert not _is_running(int(first)) and not _is_running(int(note.read_text()))
        (second,) = await score("pid")
        assert second != first

    run_pool(body, timeout_s=0.5, max_retries=0)


def test_a_worker_that_dies_is_replaced_and_the_group_tried_again(run_pool, tmp_path):
    async def body(pool, score):
        assert await score("once marker") == (11.0,)
        assert (tmp_path / "marker").exists()
        with pytest.raises(DataError) as error:
            await score("die")
        assert "ended its process (exit code 3) (tried 2 times)" in str(error.value)
        assert await score("abc") == (3.0,)

    run_pool(body)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def reward(:", "raised SyntaxError"),
        ("import no_such_module", "raised ModuleNotFoundError"),
        ("def another(prompt, response, answer): ...", "has no function 'reward'"),
        ("def reward(prompt): ...", "takes only 1 of the arguments"),
        ("import os; os._exit(5)", "importing it ended its process (exit code 5)"),
        ("import time; time.sleep(60)", "importing it took over 0.5 s"),
        (None, "reward.py"),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_file_that_cannot_be_imported_any_more_fails_groups_until_it_can_again(
    run_pool, tmp_path, monkeypatch, num_workers, text, shown
):
    """It is being edited, say, while a worker is replaced or the second one is needed for the first time."""
    file = tmp_path / "reward.py"

    async def body(pool, score):
        await pool.check(PROMPT)
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        for worker in pool._workers:
            await worker.close()
        with monkeypatch.context() as patch:
            if "sleep" in (text or ""):
                patch.setattr("swingshift.tasks.reward_process.START_TIMEOUT_S", 0.5)
            for _ in range(num_workers):
                with pytest.raises(DataError) as error:
                    await score("abc")
                assert shown in str(error.value) and "(tried 2 times)" in str(error.value), error.value
        file.write_text(FUNCTION)
        assert await score("abc") == (3.0,)

    run_pool(body, num_workers=num_workers, max_retries=1)


def test_no_process_to_be_had_fails_the_group_and_not_the_run(run_pool, monkeypatch):
    async def body(pool, score):
        await pool.check(PROMPT)
        await pool._workers[0].close()
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", "/no/such/python")
            with pytest.raises(DataError, match=r"could not be given a process .*\(tried 2 times\)"):
                await score("abc")
        assert await score("abc") == (3.0,)

    run_pool(body, max_retries=1)


def test_groups_are_scored_by_all_workers_at_once(run_pool):
    async def body(pool, score):
        groups = [score(*["pid"] * 4) for _ in range(4)]
        return await asyncio.gather(*groups)

    pids = {pid for rewards in run_pool(body, num_workers=2) for pid in rewards}
    assert len(pids) == 2


def test_a_cancelled_score_leaves_a_usable_pool(run_pool, tmp_path):
    async def body(pool, score):
        note = tmp_path / "child"
        task = asyncio.create_task(score("hang child"))
        while not note.exists():  # noqa: ASYNC110 - the worker has no other way to say that it is there
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await score("abc") == (3.0,)

    run_pool(body, timeout_s=60)


def test_closing_ends_a_worker_that_is_busy(run_pool, tmp_path, monkeypatch):
    monkeypatch.setattr("swingshift.tasks.reward_process.CLOSE_TIMEOUT_S", 0.2)

    async def body(pool, score):
        note = tmp_path / "child"
        task = asyncio.create_task(score("hang child"))
        while not note.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await pool.close()
        with pytest.raises(DataError, match="closed"):
            await task
        assert not _is_running(int(note.read_text() or 0))

    run_pool(body, timeout_s=60)


def _is_running(pid, seconds=2):
    for _ in range(50 * seconds):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("def reward(p, r): return 1", ConfigError, "takes only 2 of the arguments"),
        ("import os\nos._exit(5)", ConfigError, "importing it ended its process (exit code 5)"),
        ("def reward(p, r, a):\n    return 1 / len(r)", DataError, "raised ZeroDivisionError"),
    ],
)
def test_the_check_finds_a_broken_function(tmp_path, text, kind, shown):
    (tmp_path / "reward.py").write_text(text)
    config = RewardConfig(path=f"{tmp_path}/reward.py:reward")

    async def main():
        pool = RewardPool.from_config(config, DataConfig(), TOKENIZER)
        try:
            await pool.check(PROMPT)
        finally:
            await pool.close()

    with pytest.raises(kind) as error:
        asyncio.run(main())
    assert str(error.value).startswith(f"reward.path={config.path}") and shown in str(error.value)


def test_exact_match_runs_inline_on_the_decoded_text():
    async def main():
        pool = RewardPool.from_config(RewardConfig(), DataConfig(), TOKENIZER)
        await pool.check(PROMPT)
        eos, pad = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id
        scores = await pool.score(group_of("2", " 2", "3", "", tail=(eos, pad, 9)))
        long = await pool.score(group_of("2", "2" * 3000))
        await pool.close()
        await pool.close()
        return scores, long

    before = psutil.Process().children()
    assert asyncio.run(main()) == ((1.0, 1.0, 0.0, 0.0), (1.0, 0.0))
    assert psutil.Process().children() == before


def test_other_built_in_rewards_run_in_a_worker():
    async def main():
        pool = RewardPool.from_config(RewardConfig(name="math_verify"), DataConfig(), TOKENIZER)
        try:
            return await pool.score(group_of("4/2", "x=2", "3"))
        finally:
            await pool.close()

    assert asyncio.run(main()) == (1.0, 1.0, 0.0)


def test_texts_end_before_the_first_eos():
    eos = TOKENIZER.eos_token_id
    assert response_texts(TOKENIZER, [(5, eos, 6), (eos,), (), (5, 0, 6)]) == ["2", "", "", "23"]


def test_no_worker_outlives_a_control_process_that_is_killed(tmp_path):
    (tmp_path / "reward.py").write_text(FUNCTION)
    program = (
        "import asyncio, sys\n"
        "from swingshift.tasks.reward_process import RewardProcess\n"
        "from swingshift.tasks.rewards import RewardSpec\n"
        "async def main():\n"
        "    worker = RewardProcess(RewardSpec(path=sys.argv[1]))\n"
        "    data = {'answer': '2', 'level': 7}\n"
        "    await worker.call({'prompt': '1+1=', 'responses': ['a'], 'data': data}, 60)\n"
        "    print(worker.pid, flush=True)\n"
        "    await worker.call({'prompt': '1+1=', 'responses': ['hang child'], 'data': data}, 60)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, f"{tmp_path}/reward.py:reward"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as control:
        worker = int(control.stdout.readline())
        while not (tmp_path / "child").exists() and control.poll() is None:
            time.sleep(0.01)
        control.kill()
    assert not _is_running(worker, seconds=20)
    assert not _is_running(int((tmp_path / "child").read_text()), seconds=20)
