import json
import logging

import pytest

from swingshift.config.schema import DataConfig
from swingshift.errors import ConfigError, DataError
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.tasks.prompts import load_prompts

TOKENIZER = char_tokenizer()


def data_file(folder, *rows, name="a.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_builtin_prompts_hold_what_the_reward_needs():
    prompts = load_prompts(DataConfig(train_files=["builtin:add"], size=20), TOKENIZER)
    assert [p.uid for p in prompts] == [str(i) for i in range(20)]
    first = prompts[0]
    assert TOKENIZER.decode(list(first.token_ids)) == first.data["prompt"]
    assert first.data["data_source"] == "builtin:add"
    a, b = first.data["prompt"].removesuffix("=").split("+")
    assert first.data["answer"] == str(int(a) + int(b))
    assert json.loads(json.dumps(dict(first.data))) == first.data


def test_sources_are_joined_and_val_is_separate(tmp_path):
    path = data_file(tmp_path, {"prompt": "x", "answer": 1})
    config = DataConfig(train_files=["builtin:sort_digits", path], val_files=["builtin:sort_digits"], size=30)
    train, val = load_prompts(config, TOKENIZER), load_prompts(config, TOKENIZER, "val")
    assert len(train) == 31 and train[-1].data["data_source"] == path and train[-1].uid == "30"
    assert not {p.token_ids for p in train} & {p.token_ids for p in val}


def test_task_options_reach_the_task():
    config = DataConfig(task_options={"min_digits": 3, "max_digits": 3}, size=10)
    assert {len(p.token_ids) for p in load_prompts(config, TOKENIZER)} == {4}


def test_chat_messages_go_through_the_template(tmp_path):
    tokenizer = char_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}]
    path = data_file(tmp_path, {"prompt": messages, "answer": 1}, {"prompt": "raw", "answer": 2})
    first, second = load_prompts(DataConfig(train_files=[path]), tokenizer)
    assert first.data["prompt"] == "<user>hi\n<a>" and second.data["prompt"] == "raw"
    assert tokenizer.decode(list(first.token_ids)) == "<user>hi\n<a>"
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(DataError, match=r"line 1: the chat template refuses the messages \(no system role\)"):
        load_prompts(DataConfig(train_files=[path]), tokenizer)


def test_plain_text_gets_the_tokenizers_special_tokens_and_chat_text_does_not(tmp_path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = char_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    tokenizer.chat_template = "{{ messages[0].content }}"
    chat = [{"role": "user", "content": "ab"}]
    path = data_file(tmp_path, {"prompt": "ab", "answer": 1}, {"prompt": chat, "answer": 1})
    plain, chat_prompt = load_prompts(DataConfig(train_files=[path]), tokenizer)
    assert plain.token_ids == (tokenizer.eos_token_id, *chat_prompt.token_ids)


def test_chat_messages_without_a_template(tmp_path):
    path = data_file(tmp_path, {"prompt": [{"role": "user", "content": "hi"}], "answer": 1})
    with pytest.raises(DataError) as error:
        load_prompts(DataConfig(train_files=[path]), TOKENIZER)
    assert "a.jsonl line 1" in str(error.value) and "no chat template" in str(error.value)
    assert "actor_rollout_ref.model.path" in str(error.value)


def test_overlong_prompts(tmp_path, caplog):
    path = data_file(tmp_path, *({"prompt": "1" * n, "answer": n} for n in (3, 9, 4, 12)))
    with pytest.raises(DataError) as error:
        load_prompts(DataConfig(train_files=[path], max_prompt_length=8), TOKENIZER)
    text = str(error.value)
    assert "a.jsonl line 2: the prompt has 9 tokens, more than data.max_prompt_length=8 (2 of 4" in text
    assert "data.filter_overlong_prompts=true" in text and "\n" not in text

    config = DataConfig(train_files=[path], max_prompt_length=8, filter_overlong_prompts=True)
    with caplog.at_level(logging.WARNING):
        prompts = load_prompts(config, TOKENIZER)
    assert [(p.uid, p.data["answer"]) for p in prompts] == [("0", 3), ("1", 4)]
    assert "2 of 4 prompts over 8 tokens are left out" in caplog.text

    with pytest.raises(DataError, match=r"^data.train_files: all 4 prompts .* \(shortest: 3\)"):
        load_prompts(config.model_copy(update={"max_prompt_length": 2}), TOKENIZER)


def test_a_prompt_of_exactly_the_limit_is_kept(tmp_path):
    path = data_file(tmp_path, {"prompt": "1" * 8, "answer": 1})
    assert len(load_prompts(DataConfig(train_files=[path], max_prompt_length=8), TOKENIZER)) == 1


def test_empty_prompts_and_unknown_characters(tmp_path, caplog):
    path = data_file(tmp_path, {"prompt": "a", "answer": 1}, {"prompt": "", "answer": 1})
    with pytest.raises(DataError, match="line 2: the prompt is empty"):
        load_prompts(DataConfig(train_files=[path]), TOKENIZER)
    path = data_file(tmp_path, {"prompt": "a", "answer": 1}, {"prompt": "Ä", "answer": 1})
    with caplog.at_level(logging.WARNING):
        load_prompts(DataConfig(train_files=[path]), TOKENIZER)
    assert "1 of 2 prompts hold characters unknown" in caplog.text and "line 2" in caplog.text


def test_no_sources_and_unknown_tasks():
    with pytest.raises(ConfigError, match=r"^data.val_files is empty"):
        load_prompts(DataConfig(), TOKENIZER, "val")
    with pytest.raises(ConfigError, match="did you mean 'add'"):
        load_prompts(DataConfig(train_files=["builtin:ad"]), TOKENIZER)


def test_val_errors_name_val_files(tmp_path):
    config = DataConfig(val_files=[str(tmp_path / "none.jsonl")])
    with pytest.raises(DataError, match=r"^data.val_files: .*does not exist"):
        load_prompts(config, TOKENIZER, "val")
