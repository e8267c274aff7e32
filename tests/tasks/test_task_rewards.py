import math
import threading

import numpy as np
import pytest

from swingshift.config.schema import DataConfig, RewardConfig
from swingshift.errors import ConfigError, DataError
from swingshift.tasks import rewards
from swingshift.tasks.builtin_rewards import exact_match, final_answer, math_verify
from swingshift.tasks.rewards import RewardSpec, load_reward, resolve_reward

DATA = {"prompt": "p", "answer": "a", "data_source": "x", "level": 2}


def user_file(folder, text, name="reward.py", function="reward"):
    (folder / name).write_text(text, encoding="utf-8")
    return RewardSpec(path=f"{folder / name}:{function}")


def test_exact_match_and_final_answer():
    assert exact_match("p", " 85\n", 85) == exact_match("p", "85", "85 ") == 1.0
    assert exact_match("p", "7+8=15>85", "85") == exact_match("p", "", "85") == 0.0
    assert final_answer("p", "7+8=15>85", "85") == final_answer("p", "85", "85") == 1.0
    assert final_answer("p", "85>84", "85") == 0.0
    with pytest.raises(DataError, match=r"reward\.name=exact_match: the row has no answer.*data\.answer_key"):
        load_reward(RewardSpec(name="exact_match"))("p", "r", {"prompt": "p"})


def test_math_verify():
    for answer, response, reward in [
        ("1/2", "The answer is $\\frac{1}{2}$.", 1.0),
        ("\\frac{1}{2}", "0.5", 1.0),
        ("x^2+1", "$1 + x^2$", 1.0),
        (85, "\\boxed{85}", 1.0),
        (85, "so it is 84", 0.0),
        (85, "", 0.0),
        ("1+x", "1", 0.0),
        ("1+x", "$x+1$", 1.0),
        ("$x$ is 3/4", "0.75", 1.0),
        ("no mathematics", " no mathematics", 1.0),
        ("no mathematics", "mathematics", 0.0),
    ]:
        assert math_verify("p", response, answer) == reward, (answer, response)


def test_math_verify_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(math_verify("p", "$x+1$", "1+x+0")))
    thread.start()
    thread.join()
    assert found == [1.0]


def test_which_reward_is_used(tmp_path):
    def name(reward=None, *files, **options):
        return resolve_reward(
            RewardConfig(name=reward), DataConfig(train_files=list(files), task_options=options)
        ).name

    assert name(None, "builtin:add") == name(None, "my.jsonl") == "exact_match"
    assert name(None, "builtin:add", scratch=True) == "final_answer"
    assert name(None, "reasoning_gym:gcd") == "reasoning_gym"
    assert name("math_verify", "builtin:add") == "math_verify"
    with pytest.raises(ConfigError, match=r"reward\.name is unset .*exact_match, reasoning_gym"):
        name(None, "builtin:add", "reasoning_gym:gcd")
    spec = user_file(tmp_path, "def reward(p, r, a): return 1")
    assert resolve_reward(RewardConfig(path=spec.path, name="math_verify"), DataConfig()) == spec


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(rewards.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"reward\.name=math_verify .*pip install 'swingshift\[math\]'"):
        resolve_reward(RewardConfig(name="math_verify"), DataConfig())


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("prompt, response, answer", []),
        ("p, r, a, /", []),
        ("prompt, response, answer, level", ["level"]),
        ("prompt, response, answer, *, level=0, other=1", ["level"]),
        ("*args", []),
        ("prompt, response, answer, **extra", ["data_source", "level"]),
    ],
)
def test_columns_reach_the_function_as_far_as_it_takes_them(tmp_path, parameters, expected):
    spec = user_file(
        tmp_path,
        "seen = []\n"
        f"def reward({parameters}):\n"
        "    names = dict(locals())\n"
        "    names.update(names.pop('extra', {}))\n"
        "    seen.append(sorted(n for n in names if n in ('level', 'data_source')))\n"
        "    return 0.5\n",
    )
    function = load_reward(spec)
    assert function("p", "r", DATA) == 0.5
    assert function.function.__globals__["seen"] == [expected]


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", 1.0), ("2", 2.0), ("-0.5", -0.5), ("__import__('numpy').float32(0.25)", 0.25)],
)
def test_finite_numbers_are_rewards(tmp_path, text, value):
    assert load_reward(user_file(tmp_path, f"def reward(p, r, a): return {text}"))("p", "r", DATA) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("float('nan')", "returned nan; return a finite number"),
        ("float('inf')", "returned inf; return a finite number"),
        ("'1.0'", "returned '1.0' of type str; return a finite number"),
        ("None", "returned None of type NoneType"),
        ("{'score': 1}", "returned {'score': 1} of type dict"),
        ("__import__('numpy').ones(1)", "of type ndarray"),
    ],
)
def test_other_values_are_errors(tmp_path, text, shown):
    spec = user_file(tmp_path, f"def reward(p, r, a): return {text}")
    with pytest.raises(DataError) as error:
        load_reward(spec)("p", "r", DATA)
    assert str(error.value).startswith(f"reward.path={spec.path} ") and shown in str(error.value)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("1 / 0", "raised ZeroDivisionError: division by zero (reward.py:2)"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two lines (reward.py:2)"),
        ("exit(3)", "raised SystemExit: 3 (reward.py:2)"),
        ("__import__('json').loads('{')", "(reward.py:2)"),
        ("assert False", "raised AssertionError (reward.py:2)"),
    ],
)
def test_what_the_function_raises_is_shown_with_its_line(tmp_path, line, shown):
    spec = user_file(tmp_path, f"def reward(p, r, a):\n    {line}\n")
    with pytest.raises(DataError) as error:
        load_reward(spec)("p", "r", DATA)
    assert str(error.value).startswith(f"reward.path={spec.path} raised") and shown in str(error.value)


def test_a_column_that_is_missing(tmp_path):
    spec = user_file(tmp_path, "def reward(p, r, a, difficulty): return 1")
    with pytest.raises(DataError, match=r"missing 1 required positional argument: 'difficulty' \(reward\.py\)"):
        load_reward(spec)("p", "r", DATA)


@pytest.mark.parametrize(
    ("text", "function", "shown"),
    [
        ("def rewards(p, r, a): return 1", "reward", "no function 'reward'; did you mean 'rewards'?"),
        ("x = 1", "reward", "no function 'reward'; it defines none"),
        ("reward = 3", "reward", "is a int, not a function"),
        ("def reward(p, r): return 1", "reward", "takes only 2 of the arguments"),
        ("async def reward(p, r, a): return 1", "reward", "is an async function"),
        ("x = 1\nimport nothing_of_the_kind", "reward", "importing reward.py raised ModuleNotFoundError"),
        ("x = 1\nimport nothing_of_the_kind", "reward", "(reward.py:2)"),
        ("def reward(:", "reward", "raised SyntaxError"),
        ("exit()", "reward", "raised SystemExit"),
    ],
)
def test_files_that_cannot_be_loaded(tmp_path, text, function, shown):
    spec = user_file(tmp_path, text, function=function)
    with pytest.raises(ConfigError) as error:
        load_reward(spec)
    message = str(error.value)
    assert message.startswith(f"reward.path={spec.path}") and shown in message and "\n" not in message


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("{}/none.py:reward", "there is no file"),
        ("{}/reward.py", "write it as file.py:function"),
        ("{}/t.txt:f", "not a Python file"),
    ],
)
def test_paths_that_name_no_function(tmp_path, path, shown):
    (tmp_path / "reward.py").write_text("")
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(ConfigError, match=shown):
        load_reward(RewardSpec(path=path.format(tmp_path)))


def test_a_reward_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "swingshift_test_neighbour.py").write_text("VALUE = 0.75")
    spec = user_file(
        tmp_path, "from swingshift_test_neighbour import VALUE\ndef reward(p, r, a): return VALUE", name="mine.py"
    )
    assert load_reward(spec)("p", "r", DATA) == 0.75


def test_rewards_are_plain_floats(tmp_path):
    value = load_reward(user_file(tmp_path, "import numpy\ndef reward(p, r, a): return numpy.float64(1)"))(
        "p", "r", DATA
    )
    assert type(value) is float and not isinstance(value, np.floating) and math.isfinite(value)
