"""Prompts from JSON Lines, JSON and Parquet files on this machine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swingshift.errors import DataError
from swingshift.tasks.rows import Row, SourceOptions, to_json_values

EXTENSIONS = (".jsonl", ".json", ".parquet")


def load_file(name: str, options: SourceOptions, key: str = "data.train_files") -> list[Row]:
    """All rows of one file. ``key`` is the configuration key to blame. Raises DataError."""
    path = _checked_path(name, key)
    records = _read_parquet(path, key) if path.suffix == ".parquet" else _read_json(path, key)
    rows = [_row(record, f"{key}: {name} {place}", name, options) for place, record in records]
    if not rows:
        raise DataError(f"{key}: {name} has no rows; give a file with at least one prompt")
    return rows


def _checked_path(name: str, key: str) -> Path:
    try:
        path = Path(name).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of nobody
        reason = error.strerror if isinstance(error, OSError) else "no such user"
        raise DataError(f"{key}: {name} cannot be read ({reason}); correct the path") from error
    if is_folder:
        raise DataError(f"{key}: {name} is a directory; name the files in it one by one")
    if path.suffix not in EXTENSIONS:
        known = ", ".join(EXTENSIONS)
        raise DataError(f"{key}: {name} has the unknown extension {path.suffix!r}; use one of {known}")
    if not is_there:
        raise DataError(f"{key}: {name} does not exist (looked for {path.absolute()}); correct the path")
    return path


def _read_json(path: Path, key: str) -> Iterator[tuple[str, Any]]:
    # Not through `datasets`: it wants one type a column (an answer may be 3 here and "x" there) and reports
    # a broken line without its number.
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{key}: {path} cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{key}: {path} is not UTF-8 text (byte {error.start}); convert it") from error
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return _read_array(text, path, key)
    return _read_lines(text, path, key)


def _read_lines(text: str, path: Path, key: str) -> Iterator[tuple[str, Any]]:
    # Not splitlines(): JSON strings may hold U+2028 and other characters that it takes for line ends.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{key}: {path} line {number} is not valid JSON ({error}); correct it") from error


def _read_array(text: str, path: Path, key: str) -> Iterator[tuple[str, Any]]:
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{key}: {path} is not valid JSON ({error}); correct it") from error
    yield from ((f"row {i}", record) for i, record in enumerate(records, start=1))


def _read_parquet(path: Path, key: str) -> list[tuple[str, Any]]:
    import datasets
    from datasets.exceptions import DatasetsError

    # What goes wrong is said once, below.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    # Streaming copies nothing; the cache folder only takes a lock file that would stay in the user's home. The
    # batch size matters for an empty file, whose own would be 0.
    with tempfile.TemporaryDirectory(prefix="swingshift-data-") as cache:
        try:
            stream = datasets.load_dataset(
                "parquet", data_files=str(path), split="train", streaming=True, cache_dir=cache, batch_size=1024
            )
            return [(f"row {i}", record) for i, record in enumerate(stream, start=1)]
        except (OSError, ValueError, DatasetsError) as error:
            message = " ".join(str(error).split())
            raise DataError(f"{key}: {path} is not a readable Parquet file ({message}); write it again") from error


def _row(record: Any, where: str, name: str, options: SourceOptions) -> Row:
    if not isinstance(record, dict):
        raise DataError(f"{where} is a {type(record).__name__}, not an object; write one {{...}} per row")
    prompt = _column(record, options.prompt_key, "data.prompt_key", where)
    if options.answer_key:
        answer = _column(record, options.answer_key, "data.answer_key", where)
    else:
        answer = None
    _check_prompt(prompt, options.prompt_key, where)
    rest = {k: v for k, v in record.items() if k not in (options.prompt_key, options.answer_key)}
    data = to_json_values({"data_source": name, **rest, "answer": answer}, where)
    return Row(prompt, data, where)


def _column(record: Mapping[str, Any], column: str, setting: str, where: str) -> Any:
    if column not in record:
        found = ", ".join(record) or "none"
        hint = " (or to '' if the reward needs no answer)" if setting == "data.answer_key" else ""
        raise DataError(f"{where} has no column {column!r}; set {setting} to one of: {found}{hint}")
    return record[column]


def _check_prompt(prompt: Any, column: str, where: str) -> None:
    if isinstance(prompt, str):
        return
    remedy = "use a string or a list of {'role': ..., 'content': ...} messages"
    if not isinstance(prompt, list):
        raise DataError(f"{where}: column {column!r} is of type {type(prompt).__name__}; {remedy}")
    if not prompt:
        raise DataError(f"{where}: column {column!r} is an empty list of messages; {remedy}")
    for i, message in enumerate(prompt):
        if not (
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise DataError(f"{where}: message {i} of column {column!r} is not a chat message; {remedy}")
