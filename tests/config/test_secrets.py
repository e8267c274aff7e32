"""Secrets are masked wherever a run writes, and nothing else is."""

import logging

import pytest

from swingshift.config.checks import check_config
from swingshift.config.document import to_yaml
from swingshift.config.keys import all_keys
from swingshift.config.loading import load_config
from swingshift.config.secrets import MASK, MaskingFormatter, Secrets, is_secret, mask_config, names_secret
from swingshift.errors import ConfigError

SECRET_NAMES = [
    "password",
    "db_password",
    "dbPassword",
    "PASSWORD",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "client_secret",
    "SecretKey",
    "api_key",
    "apikey",
    "apiKey",
    "API_KEY",
    "openai_api_key",
    "access_key",
    "aws_secret_access_key",
    "private_key",
    "auth_token",
    "access_token",
    "HF_TOKEN",
    "WANDB_API_KEY",
    "token",
    "credentials",
    "Authorization",
    "bearer",
    "session_token",
    "signing_key",
    "user-token",
]
HARMLESS_NAMES = [
    "max_tokens",
    "num_tokens",
    "eos_token",
    "pad_token",
    "stop_token_ids",
    "tokenizer",
    "prompt_key",
    "answer_key",
    "sort_key",
    "key",
    "keys",
    "min_digits",
    "seed",
    "passes",
    "compass",
    "keyboard",
    "author",
    "secretary",
    "total_rollout_steps",
    "token_level_loss",
    "RAY_AUTH_MODE",
]
RANDOM = "q8Zt3vN0aWx71LmPz5Kd2"


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name):
    assert names_secret(name) and is_secret(name, "x") and is_secret(name, 12345)
    assert not is_secret(name, None), "a secret that is not set is worth knowing"


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_names_of_other_things(name):
    assert not names_secret(name) and not is_secret(name, "length") and not is_secret(name, 5)


def test_a_key_with_a_random_value_is_a_secret():
    assert is_secret("key", RANDOM) and is_secret("my_token", RANDOM)
    assert not is_secret("key", "reference_answer_column") and not is_secret("name", RANDOM)


def test_no_key_of_our_own_is_taken_for_one():
    wrong = [path for path, key in all_keys().items() if is_secret(path.rpartition(".")[2], key.default or "x")]
    assert wrong == []


def configured(*overrides):
    return load_config([], list(overrides))


def test_the_written_configuration_is_masked(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", RANDOM)
    config = configured(
        "data.task_options.judge_api_key=hunter2",
        "data.task_options.login={user: me, password: 1234, tries: 3}",
        "data.task_options.tokens=[a, b]",
        "data.task_options.auth_tokens=[first-one, second-one]",
        "data.task_options.endpoint=https://me:hunter3@host/path",
        "async_training.dynamic_schedule_policy_kwargs.token=${oc.env:MY_API_KEY}",
        "trainer.project_name=run-${oc.env:MY_API_KEY}",
        "data.task_options.min_digits=3",
    )
    text = to_yaml(config)
    for secret in ("hunter2", "1234", "first-one", "second-one", "hunter3", RANDOM):
        assert secret not in text
    options = mask_config(config.model_dump())["data"]["task_options"]
    assert options == {
        "judge_api_key": MASK,
        "login": {"user": "me", "password": MASK, "tries": 3},
        "tokens": ["a", "b"],
        "auth_tokens": [MASK, MASK],
        "endpoint": f"https://{MASK}@host/path",
        "min_digits": 3,
    }
    assert f"project_name: run-{MASK}" in text
    assert config.data.task_options["judge_api_key"] == "hunter2", "the run itself has it"


def test_without_secrets_nothing_changes():
    config = configured("trainer.seed=3", "data.task_options.min_digits=3")
    assert mask_config(config.model_dump(mode="json")) == config.model_dump(mode="json")


def test_a_masked_configuration_loads_but_does_not_run(tmp_path):
    config = configured("data.task_options.api_key=hunter2", "data.task_options.urls=['https://me:pw@host']")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = load_config([tmp_path / "config.yaml"], [])
    with pytest.raises(ConfigError) as caught:
        check_config(again)
    lines = str(caught.value).splitlines()
    assert [line.partition("=")[0] for line in lines] == ["data.task_options.api_key", "data.task_options.urls"]
    assert "${oc.env:NAME}" in lines[0]
    given = ["data.task_options.api_key=hunter2", "data.task_options.urls=[]"]
    check_config(load_config([tmp_path / "config.yaml"], given))


TEXTS = {
    "configuration: my.yaml data.task_options.api_key=x1": "configuration: my.yaml data.task_options.api_key=***",
    '{"password": "open sesame", "n": 1}': '{"password": ***, "n": 1}',
    "POST http://me:pw@host/x failed": "POST http://***@host/x failed",
    "credentials.user=me trainer.seed=1": "credentials.user=*** trainer.seed=1",
    "max_tokens=5 eos_token=<eos> RAY_AUTH_MODE=token": "max_tokens=5 eos_token=<eos> RAY_AUTH_MODE=token",
    "trainer.seed=1: is fine; see https://host/path": "trainer.seed=1: is fine; see https://host/path",
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_masked(text):
    assert Secrets().mask_text(text) == TEXTS[text]


def test_known_values_are_masked_wherever_they_turn_up():
    secrets = Secrets.of(
        {"task_options": {"api_key": "hunter2", "pin": {"password": 99}, "use_password": True, "secret": None}},
        {"SERVICE_TOKEN": RANDOM, "GITHUB_TOKEN": "short", "HOME": "/home/somebody", "GPG_KEY": RANDOM[::-1]},
    )
    assert set(secrets.values) == {"hunter2", RANDOM, RANDOM[::-1]}, "short values could be part of any word"
    assert secrets.mask_text(f"got 401 for hunter2 and {RANDOM}!") == f"got 401 for {MASK} and {MASK}!"


def test_log_lines_and_tracebacks_are_masked():
    formatter = MaskingFormatter("%(levelname)s %(message)s", Secrets(("hunter2",)))
    try:
        raise ValueError("401 for hunter2")
    except ValueError as error:
        record = logging.LogRecord("x", logging.INFO, "f", 1, "key %s", ("hunter2",), (ValueError, error, None))
    shown = formatter.format(record)
    assert "hunter2" not in shown and f"INFO key {MASK}" in shown and f"ValueError: 401 for {MASK}" in shown
