"""From data sources to tokenized prompts, and the cursor that feeds them to the rollouter."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from swingshift.core.types import Prompt
from swingshift.errors import CheckpointError, ConfigError, DataError
from swingshift.tasks.builtin import get_task
from swingshift.tasks.files import load_file
from swingshift.tasks.reasoning_gym import load_reasoning_gym
from swingshift.tasks.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from swingshift.config.schema import DataConfig

logger = logging.getLogger(__name__)

Split = Literal["train", "val"]


def load_prompts(config: DataConfig, tokenizer: PreTrainedTokenizerBase, split: Split = "train") -> list[Prompt]:
    """Every prompt of ``data.train_files`` or ``data.val_files``, in order; ``uid`` is its number from 0.

    ``Prompt.data`` holds ``prompt`` (its text), ``answer``, ``data_source`` and the row's other columns.
    Raises ConfigError and DataError, each naming key, file, row and remedy.
    """
    key = f"data.{split}_files"
    sources = config.train_files if split == "train" else config.val_files
    if not sources:
        raise ConfigError(f"{key} is empty; name a JSONL or Parquet file or a task such as builtin:sort_digits")
    rows = [row for source in sources for row in _load_source(source, config, split, key)]
    texts = [_text(row, tokenizer) for row in rows]
    ids = _encode(rows, texts, tokenizer)
    _warn_of_unknown_characters(rows, ids, tokenizer)
    kept = _within_limit(rows, ids, config, key)
    return [Prompt(str(uid), tuple(ids[i]), {**rows[i].data, "prompt": texts[i]}) for uid, i in enumerate(kept)]


def _load_source(source: str, config: DataConfig, split: Split, key: str) -> list[Row]:
    kind, _, name = source.partition(":")
    if kind == "builtin":
        examples = get_task(name, config.task_options).examples(config.size, config.seed, split)
        return [
            Row(e["prompt"], {"data_source": source, **e}, f"{key}: {source} row {i}")
            for i, e in enumerate(examples, start=1)
        ]
    if kind == "reasoning_gym":
        return load_reasoning_gym(name, config, split, key)
    return load_file(source, config, key)


def _text(row: Row, tokenizer: PreTrainedTokenizerBase) -> str:
    if isinstance(row.prompt, str):
        return row.prompt
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"{row.where}: the prompt is a list of chat messages, but the tokenizer has no chat template; "
            "use plain text prompts or an instruct model in actor_rollout_ref.model.path"
        )
    try:
        text = tokenizer.apply_chat_template(row.prompt, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs of the model's authors
        raise DataError(f"{row.where}: the chat template refuses the messages ({error}); correct them") from error
    assert isinstance(text, str)
    return text


def _encode(rows: Sequence[Row], texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids. Chat templates write their special tokens themselves, plain text gets the tokenizer's."""
    ids: list[list[int]] = [[] for _ in rows]
    for is_chat in (False, True):
        chosen = [i for i, row in enumerate(rows) if isinstance(row.prompt, list) is is_chat]
        if chosen:
            encoded = tokenizer([texts[i] for i in chosen], add_special_tokens=not is_chat, verbose=False)
            for i, tokens in zip(chosen, encoded["input_ids"], strict=True):
                ids[i] = tokens
    for row, tokens in zip(rows, ids, strict=True):
        if not tokens:
            raise DataError(f"{row.where}: the prompt is empty; remove the row or write a prompt")
    return ids


def _warn_of_unknown_characters(
    rows: Sequence[Row], ids: Sequence[list[int]], tokenizer: PreTrainedTokenizerBase
) -> None:
    unknown = tokenizer.unk_token_id
    # Some models use one token as eos, pad and unk: then it says nothing.
    if unknown is None or unknown in (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id):
        return
    bad = [row for row, tokens in zip(rows, ids, strict=True) if unknown in tokens]
    if bad:
        logger.warning(
            "%d of %d prompts hold characters unknown to the tokenizer, read as %s (first: %s)",
            len(bad),
            len(rows),
            tokenizer.unk_token,
            bad[0].where,
        )


def _within_limit(rows: Sequence[Row], ids: Sequence[list[int]], config: DataConfig, key: str) -> list[int]:
    limit = config.max_prompt_length
    long = {i for i, tokens in enumerate(ids) if len(tokens) > limit}
    if not long:
        return list(range(len(rows)))
    first = min(long)
    if not config.filter_overlong_prompts:
        raise DataError(
            f"{rows[first].where}: the prompt has {len(ids[first])} tokens, more than "
            f"data.max_prompt_length={limit} ({len(long)} of {len(rows)} prompts are too long); "
            "raise it or set data.filter_overlong_prompts=true"
        )
    if len(long) == len(rows):
        raise DataError(
            f"{key}: all {len(rows)} prompts have more tokens than data.max_prompt_length={limit} "
            f"(shortest: {min(len(t) for t in ids)}), so filtering leaves none; raise the limit"
        )
    logger.warning("%s: %d of %d prompts over %d tokens are left out", key, len(long), len(rows), limit)
    return [i for i in range(len(rows)) if i not in long]


class DatasetPromptSource:
    """Prompts in a fixed order, each epoch a permutation of the rows. Implements ``PromptSource``.

    The order depends only on ``seed`` and the number of rows: every process and every resume sees the same.
    It ends after ``epochs``, or after ``limit`` prompts (``rollout.total_rollout_steps``) if that comes first.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        if not prompts:
            raise DataError("data.train_files: no prompts; give a file with at least one")
        assert epochs >= 1 and (limit is None or limit >= 1)
        self._prompts = tuple(prompts)
        self._shuffle = shuffle
        self._seed = seed
        self._total = min(epochs * len(prompts), limit or sys.maxsize)
        self._cursor = 0
        self._order: tuple[int, Sequence[int]] | None = None

    def next(self) -> Prompt | None:
        """The next prompt, its ``uid`` being ``<epoch>-<row>``; None at the end."""
        if self._cursor >= self._total:
            return None
        epoch, position = divmod(self._cursor, len(self._prompts))
        row = self._epoch_order(epoch)[position]
        self._cursor += 1
        return replace(self._prompts[row], uid=f"{epoch}-{row}")

    def remaining(self) -> int:
        return max(0, self._total - self._cursor)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken. Raises CheckpointError if the data or their order changed."""
        for name, mine in self._identity().items():
            theirs = state.get(name)
            if theirs != mine:
                raise CheckpointError(
                    f"the checkpoint was made with {name}={theirs!r} and the data have {mine!r} now; "
                    "restore data.train_files, data.shuffle and data.seed, or set trainer.resume_mode=disable"
                )
        cursor = state.get("cursor")
        if not isinstance(cursor, int) or cursor < 0:
            raise CheckpointError(f"the checkpoint's prompt cursor is {cursor!r}, not a position; use another one")
        self._cursor = cursor

    def _identity(self) -> dict[str, Any]:
        return {"num_rows": len(self._prompts), "shuffle": self._shuffle, "seed": self._seed}

    def _epoch_order(self, epoch: int) -> Sequence[int]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, epoch_order(len(self._prompts), epoch, self._seed, self._shuffle))
        return self._order[1]


def epoch_order(num_rows: int, epoch: int, seed: int, shuffle: bool) -> Sequence[int]:
    """The row numbers of one epoch, in order."""
    if not shuffle:
        return range(num_rows)
    order = list(range(num_rows))
    # Seeding with a string is stable across processes (a hash of a tuple would not be).
    random.Random(f"{seed}-{epoch}").shuffle(order)
    return order
