import json
import subprocess
import sys
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swingshift.config.schema import DataConfig
from swingshift.errors import DataError
from swingshift.tasks.files import load_file

CONFIG = DataConfig()


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def error_of(name, config=CONFIG):
    with pytest.raises(DataError) as error:
        load_file(name, config)
    text = str(error.value)
    assert text.startswith("data.train_files: ") and "\n" not in text, text
    return text


def test_jsonl_rows_keep_their_columns_and_any_answer(tmp_path):
    rows = [
        {"prompt": "1+1=", "answer": 2, "level": "easy"},
        {"prompt": "a\u2028b", "answer": {"all": [1, None]}, "level": 3},
    ]
    path = write(tmp_path, "a.jsonl", "\ufeff" + lines(rows[0]) + "\n" + json.dumps(rows[1], ensure_ascii=False))
    first, second = load_file(path, CONFIG)
    assert (first.prompt, dict(first.data)) == ("1+1=", {"answer": 2, "level": "easy", "data_source": path})
    assert second.prompt == "a\u2028b" and second.data["answer"] == {"all": [1, None]}
    assert second.where.endswith("a.jsonl line 3")


def test_a_rows_own_data_source_and_other_keys(tmp_path):
    path = write(tmp_path, "a.jsonl", lines({"q": "x", "a": "y", "prompt": "old", "data_source": "mine"}))
    (row,) = load_file(path, DataConfig(prompt_key="q", answer_key="a"))
    assert row.prompt == "x" and row.data["answer"] == "y" and row.data["data_source"] == "mine"
    (row,) = load_file(path, DataConfig(prompt_key="q", answer_key=""))
    assert row.data["answer"] is None and row.data["a"] == "y"


def test_json_arrays_and_lines(tmp_path):
    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]
    for text in (json.dumps(rows, indent=1), lines(*rows)):
        path = write(tmp_path, "a.json", text)
        assert [r.prompt for r in load_file(path, CONFIG)] == ["a", "b"]
    text = error_of(write(tmp_path, "bad.json", '[{"prompt": 1},'))
    assert "bad.json is not valid JSON" in text


def test_parquet_rows(tmp_path):
    path = str(tmp_path / "a.parquet")
    messages = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]]
    table = pa.table({"prompt": messages, "answer": [1.5, 2.5], "day": [date(2024, 1, 2), None]})
    pq.write_table(table, path)
    first, second = load_file(path, CONFIG)
    assert first.prompt == messages[0]
    assert dict(first.data) == {"answer": 1.5, "day": "2024-01-02", "data_source": path}
    assert second.where.endswith("a.parquet row 2") and second.data["day"] is None


def test_parquet_reading_leaves_nothing_behind_and_needs_no_network(tmp_path):
    path, home, scratch = tmp_path / "a.parquet", tmp_path / "home", tmp_path / "scratch"
    home.mkdir()
    scratch.mkdir()
    pq.write_table(pa.table({"prompt": ["a"], "answer": ["b"]}), path)
    code = (
        "import socket, sys\n"
        "def refuse(*args): raise AssertionError(args)\n"
        "socket.socket.connect = refuse\n"
        "from swingshift.config.schema import DataConfig\n"
        "from swingshift.tasks.files import load_file\n"
        "assert len(load_file(sys.argv[1], DataConfig())) == 1\n"
    )
    env = {"HOME": str(home), "TMPDIR": str(scratch), "PATH": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=env)
    assert not list(home.rglob("*")) and not list(scratch.iterdir())


def test_files_that_cannot_be_used(tmp_path):
    assert "nowhere.jsonl does not exist" in error_of(str(tmp_path / "nowhere.jsonl"))
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    assert "is a directory; name the files" in error_of(str(folder))
    assert "has no rows" in error_of(write(tmp_path, "empty.jsonl", "\n  \n"))
    assert "has no rows" in error_of(write(tmp_path, "empty.json", "[]"))
    csv = error_of(write(tmp_path, "a.csv", "prompt,answer"))
    assert "unknown extension '.csv'; use one of .jsonl, .json, .parquet" in csv
    assert "not a readable Parquet file" in error_of(write(tmp_path, "a.parquet", "no"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    assert "latin.jsonl is not UTF-8 text (byte 12)" in error_of(str(tmp_path / "latin.jsonl"))


def test_an_empty_parquet_file(tmp_path):
    path = str(tmp_path / "none.parquet")
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    assert "none.parquet has no rows" in error_of(path)


GOOD = '{"prompt": "a", "answer": 1}\n'


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('{"prompt": ', ["line 2 is not valid JSON", "correct it"]),
        ("[1]\n", ["line 2 is a list, not an object"]),
        ('{"question": "x", "answer": 1}', ["line 2 has no column 'prompt'", "data.prompt_key", "question, answer"]),
        ('{"prompt": "x"}', ["line 2 has no column 'answer'", "data.answer_key", "''"]),
        ('{"prompt": 7, "answer": 1}', ["line 2", "column 'prompt' is of type int", "use a string or a list"]),
        ('{"prompt": null, "answer": 1}', ["column 'prompt' is of type NoneType"]),
        ('{"prompt": [], "answer": 1}', ["column 'prompt' is an empty list"]),
        ('{"prompt": ["x"], "answer": 1}', ["message 0 of column 'prompt'"]),
        ('{"prompt": [{"role": "user"}], "answer": 1}', ["message 0 of column 'prompt'"]),
    ],
)
def test_rows_that_cannot_be_used(tmp_path, second, words):
    text = error_of(write(tmp_path, "a.jsonl", GOOD + second))
    assert all(word in text for word in words), text


def test_a_column_that_json_cannot_hold(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "answer": ["b"], "image": [b"\x00\x01"]}), path)
    text = error_of(path)
    assert "row 1: column 'image' holds a value that JSON cannot express" in text and "drop the column" in text
