"""Layers, overrides, interpolations, and reading back what was written."""

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.config.document import to_yaml
from swingshift.config.keys import all_keys, nearest_key
from swingshift.config.layers import is_override
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def messages(files=(), overrides=()):
    with pytest.raises(ConfigError) as caught:
        load_config(files, overrides)
    return str(caught.value).splitlines()


def test_without_anything_the_schemas_defaults():
    assert load_config([], []) == SwingshiftConfig()


def test_later_layers_win_and_the_rest_stays(tmp_path):
    one = write(tmp_path, "1.yaml", "trainer: {seed: 1, nnodes: 2}\ndata: {train_files: [a.jsonl, b.jsonl]}")
    two = write(tmp_path, "2.yaml", "trainer: {seed: 2}\ndata: {train_files: [c.jsonl]}")
    config = load_config([one, two], [])
    assert (config.trainer.seed, config.trainer.nnodes, config.data.train_files) == (2, 2, ["c.jsonl"])
    assert load_config([two, one], []).trainer.seed == 1
    assert load_config([one, two], ["trainer.seed=3", "trainer.seed=4"]).trainer.seed == 4


def test_the_fields_plus_prefix_is_a_plain_set():
    config = load_config([], ["+trainer.seed=5", "++data.seed=6"])
    assert (config.trainer.seed, config.data.seed) == (5, 6)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("data.train_files=one.jsonl", "data.train_files", ["one.jsonl"]),
        ("data.train_files=[a.jsonl,b.jsonl]", "data.train_files", ["a.jsonl", "b.jsonl"]),
        ("data.val_files=null", "data.val_files", []),
        ("data.task_options={max: 3}", "data.task_options", {"max": 3}),
        ("data.task_options.max=3", "data.task_options", {"max": 3}),
        ("trainer.logger=console", "trainer.logger", ["console"]),
        ("trainer.experiment_name=42", "trainer.experiment_name", "42"),
        ("trainer.overwrite=True", "trainer.overwrite", True),
        ("trainer.default_local_dir=runs/lr=1", "trainer.default_local_dir", "runs/lr=1"),
        ("actor_rollout_ref.actor.optim.lr=1e-6", "actor_rollout_ref.actor.optim.lr", 1e-6),
        ("actor_rollout_ref.actor.clip_ratio_high=null", "actor_rollout_ref.actor.clip_ratio_high", None),
        ("rollout.total_rollout_steps='64'", "rollout.total_rollout_steps", 64),
    ],
)
def test_override_values(override, path, value):
    found = load_config([], [override])
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_interpolations_may_refer_to_defaults_other_layers_and_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SWINGSHIFT_TEST_NAME", "night")
    text = (
        "trainer:\n  experiment_name: ${oc.env:SWINGSHIFT_TEST_NAME}\n  default_local_dir: runs/${.experiment_name}\n"
    )
    file = write(tmp_path, "a.yaml", text + "data: {seed: '${trainer.seed}', size: '${data.max_prompt_length}'}")
    config = load_config([file], ["trainer.seed=9"])
    assert config.trainer.default_local_dir == "runs/night"
    assert (config.data.seed, config.data.size) == (9, 512)


def test_mappings_and_sections_may_be_interpolations():
    kwargs = "async_training.dynamic_schedule_policy_kwargs"
    config = load_config([], ["data.task_options.low=2", f"{kwargs}=${{data.task_options}}"])
    assert config.async_training.dynamic_schedule_policy_kwargs == {"low": 2}


def test_an_empty_file_is_an_empty_layer(tmp_path):
    assert load_config([write(tmp_path, "a.yaml", "# nothing yet\n")], []) == SwingshiftConfig()


# --- mistakes -------------------------------------------------------------------------------------------------


def test_every_mistake_is_listed_sorted_by_key(tmp_path):
    file = write(tmp_path, "a.yaml", "trainer: {sead: 1}\nasync_training: {staleness_threshold: -1}")
    lines = messages([file, tmp_path / "gone.yaml"], ["data.size=abc", "oops", "actor_rollout_ref.rollout.n=0"])
    assert [line.split("=")[0].split(":")[0] for line in lines] == [
        str(tmp_path / "gone.yaml"),
        "actor_rollout_ref.rollout.n",
        "async_training.staleness_threshold",
        "data.size",
        "oops",
        "trainer.sead",
    ]
    assert all(str(file) in lines[i] for i in (2, 5)) and str(file) not in lines[3]


def test_an_override_of_a_files_value_takes_the_blame(tmp_path):
    file = write(tmp_path, "a.yaml", "data: {size: 3}")
    assert "a.yaml" not in messages([file], ["data.size=-1"])[0]
    assert "a.yaml" in messages([write(tmp_path, "a.yaml", "data: {size: -1}")], ["data.seed=1"])[0]


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("a: 1\nb: [1\nc: 2\n", "line 3"),
        ("trainer:\n  seed: 1\n  seed: 2\n", "line 3: found duplicate key seed"),
        ("- a\n- b\n", "not a mapping"),
        ("hello", "not a mapping"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("trainer: {seed: !!python/name:os.system x}", "constructor"),
        ("trainer: {experiment_name: '${oops'}", "broken interpolation"),
        ("trainer.seed: 3", "trainer.seed=3: is written with dots; nest it"),
        ("data: {task_options: {on: 2}}", "data.task_options: the name true is not text; quote it"),
        ("trainer: {1: 2}", "trainer.1: the name 1 is not text; quote it"),
        ("trainer:\n", "trainer=null: is not a section; give it keys of its own such as trainer.nnodes"),
        ("a: \x01", "a.yaml"),
    ],
)
def test_bad_files(tmp_path, text, needle):
    [line] = messages([write(tmp_path, "a.yaml", text)])
    assert needle in line and "a.yaml" in line


def test_files_that_are_no_files(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, needle in [("none.yaml", "no such file"), ("", "directory"), ("binary.yaml", "not UTF-8")]:
        [line] = messages([tmp_path / name])
        assert needle in line and str(tmp_path) in line
    [line] = messages(["null\0byte.yaml"])
    assert "cannot be read" in line


@pytest.mark.parametrize(
    ("override", "needle"),
    [
        ("trainer.seed=${trainer.sed}", "did you mean ${trainer.seed}?"),
        ("trainer.seed=${oc.env:SWINGSHIFT_NOT_SET}", "SWINGSHIFT_NOT_SET"),
        ("trainer.seed=${trainer.seed}", "Recursive"),
        ("trainer.seed=${nobody:x}", "nobody"),
        ("trainer.seed=???", "must be set"),
    ],
)
def test_interpolations_that_lead_nowhere(override, needle):
    [line] = messages([], [override])
    assert line.startswith("trainer.seed=") and needle in line


def test_a_missing_file_is_not_blamed_on_those_who_refer_to_it():
    assert len(messages(["gone.yaml"], ["trainer.experiment_name=${data.nickname}"])) == 1


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("trainer.staleness_threshold", "async_training.staleness_threshold"),
        ("async_training.stalenes_threshold", "async_training.staleness_threshold"),
        ("staleness_threshold", "async_training.staleness_threshold"),
        ("ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("rollout.n", "actor_rollout_ref.rollout.n"),
        ("rollout.gpu_memory_utilization", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("model.path", "actor_rollout_ref.model.path"),
        ("trainer.save_frequency", "trainer.save_freq"),
        ("trainer.n_gpus", "trainer.n_gpus_per_node"),
        ("async_training.partial_rollout", "actor_rollout_ref.rollout.partial_rollout"),
        ("actor_rollout_ref.actor.lr", "actor_rollout_ref.actor.optim.lr"),
        ("data.train_file", "data.train_files"),
    ],
)
def test_nearest_key(wrong, right):
    assert nearest_key(wrong) == (right, True)
    [line] = messages([], [f"{wrong}=1"])
    assert line == f"{wrong}=1: unknown key; did you mean {right}?"


def test_an_unknown_section_is_reported_leaf_by_leaf():
    lines = messages([], ["trainer.async={staleness_threshold: 1, sync_step: 2}"])
    assert [line.split("=")[0] for line in lines] == ["trainer.async.staleness_threshold", "trainer.async.sync_step"]


# --- round trips and properties ----------------------------------------------------------------------------------


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20) | st.sampled_from(
    ["1e3", "on", "null", "~", "${x}", r"\${x}", r"\\${trainer.seed}", "a: b", "[1", "'", "0x1", "12:30", "1_0"]
)


@given(name=TEXT, options=st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.none(), max_size=3))
@settings(max_examples=60, deadline=None)
def test_whatever_is_shown_loads_back(tmp_path_factory, name, options):
    config = SwingshiftConfig()
    config.trainer.experiment_name = name
    config.data.task_options = options
    path = tmp_path_factory.mktemp("shown") / "a.yaml"
    for defaults in (True, False):
        path.write_text(to_yaml(config, defaults=defaults), encoding="utf-8")
        assert load_config([path], []) == config


def test_demo_files_round_trip(tmp_path):
    for file in CONFIGS.glob("*.yaml"):
        config = load_config([CONFIGS / "demo.yaml", file], [])
        for defaults in (True, False):
            shown = write(tmp_path, "shown.yaml", to_yaml(config, defaults=defaults))
            assert load_config([shown], []) == config
    assert to_yaml(SwingshiftConfig(), defaults=False) == ""


def test_the_embedded_default_is_the_demo():
    assert DEFAULT_FILE.read_text() == (CONFIGS / "demo.yaml").read_text()


LEAVES = [key.path for key in all_keys().values() if not key.is_section]


@given(path=st.sampled_from(LEAVES), value=st.integers() | st.floats(allow_nan=False) | st.booleans() | TEXT)
@settings(max_examples=60, deadline=None)
def test_an_override_sets_its_key_or_is_refused_by_name(path, value):
    text = yaml.safe_dump(value, allow_unicode=True, width=1000).removesuffix("\n...\n").strip()
    try:
        config = load_config([], [f"{path}={text}"])
    except ConfigError as error:
        [line] = str(error).splitlines()
        assert path.rpartition(".")[0] in line and path.rpartition(".")[2] in line
    else:
        changed = [key for key in LEAVES if read(config, key) != read(SwingshiftConfig(), key)]
        assert changed in ([], [path])


def read(config, path):
    for part in path.split("."):
        config = getattr(config, part)
    return config


@given(st.text(string.printable, max_size=30))
@settings(max_examples=80, deadline=None)
def test_no_override_text_causes_anything_but_one_line(text):
    try:
        load_config([], [text])
    except ConfigError as error:
        assert str(error).strip() and "\n" not in str(error)


@given(st.lists(st.tuples(st.sampled_from(["trainer.seed", "data.seed"]), st.integers(0, 99)), max_size=6))
@settings(deadline=None, max_examples=50)
def test_the_last_override_of_a_key_wins(pairs):
    config = load_config([], [f"{key}={value}" for key, value in pairs])
    last = dict(pairs)
    assert (config.trainer.seed, config.data.seed) == (last.get("trainer.seed", 0), last.get("data.seed", 0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", True),
        ("+a.b=x.yaml", True),
        ("reward.path=f.py:g", True),
        ("runs/lr=1/config.yaml", False),
        ("config.yaml", False),
        ("=1", False),
    ],
)
def test_files_and_overrides_are_told_apart(text, expected):
    assert is_override(text) is expected


def test_every_key_and_section_says_what_it_means():
    assert [key.path for key in all_keys().values() if not key.description] == []
