import logging

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from swingshift.errors import ConfigError
from swingshift.tasks.char_tokenizer import CHARACTERS, char_tokenizer
from swingshift.tasks.tokenizer import load_tokenizer


def test_the_built_in_tokenizer_and_its_saved_copy(tmp_path):
    builtin = load_tokenizer("builtin:tiny")
    builtin.save_pretrained(tmp_path)
    saved = load_tokenizer(str(tmp_path))
    text = CHARACTERS + " <eos> a , b ."
    assert saved(text)["input_ids"] == builtin(text)["input_ids"] == char_tokenizer()(text)["input_ids"]
    assert saved.decode(saved(text)["input_ids"]) == text
    assert (saved.pad_token_id, saved.eos_token_id, saved.unk_token_id) == (0, 1, 2)


def test_a_tokenizer_without_pad_or_eos(tmp_path):
    vocabulary = models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(vocabulary), eos_token="<eos>").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).pad_token_id == 1
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(vocabulary)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no eos token"):
        load_tokenizer(str(tmp_path))


def test_paths_that_hold_no_tokenizer(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.CRITICAL):
        for path, shown in [
            ("builtin:big", "no such built-in model"),
            (str(tmp_path / "none"), "does not exist"),
            ("./none/here", "does not exist"),
            (str(tmp_path / "file"), "is a file"),
            (str(tmp_path), "no tokenizer could be loaded"),
        ]:
            with pytest.raises(ConfigError) as error:
                load_tokenizer(path)
            text = str(error.value)
            assert text.startswith(f"actor_rollout_ref.model.path={path}") and shown in text and "\n" not in text
