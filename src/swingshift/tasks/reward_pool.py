"""Scores finished groups away from the control loop: deadline, retries, replacement of bad workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swingshift.core.types import Prompt, SampleGroup, Tokens
from swingshift.errors import ConfigError, DataError
from swingshift.tasks.builtin_rewards import INLINE_REWARDS
from swingshift.tasks.reward_process import RewardProcess, WorkerFailure
from swingshift.tasks.rewards import RewardSpec, load_reward, resolve_reward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from swingshift.config.schema import DataConfig, RewardConfig

logger = logging.getLogger(__name__)

MAX_INLINE_TOKENS = 2048
"""Groups with more tokens are decoded in a thread: about 0.2 ms of the control loop's time."""


class RewardPool:
    """Implements ``runtime.ports.RewardFn``.

    The functions in ``INLINE_REWARDS`` take microseconds and run on the spot; all others run in
    ``num_workers`` processes, started when first needed. ``timeout_s`` is the deadline of one try at one
    group, not counting the wait for a free worker; after ``max_retries`` further tries it is a DataError.

    A function that cannot be loaded is a ConfigError. Once it has been, that is another worker's failure: somebody
    may be editing the file.
    """

    def __init__(
        self,
        spec: RewardSpec,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_workers: int = 1,
        timeout_s: float = 30.0,
        max_retries: int = 1,
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._inline = load_reward(spec) if spec.name in INLINE_REWARDS else None
        self._workers = [] if self._inline else [RewardProcess(spec) for _ in range(num_workers)]
        self._idle: asyncio.LifoQueue[RewardProcess] = asyncio.LifoQueue()
        for worker in reversed(self._workers):
            self._idle.put_nowait(worker)
        self._has_worked = False
        self._closed = False

    @classmethod
    def from_config(cls, reward: RewardConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase) -> RewardPool:
        """Raises ConfigError if the reward function is not there."""
        return cls(
            resolve_reward(reward, data),
            tokenizer,
            num_workers=reward.num_workers,
            timeout_s=reward.timeout_s,
            max_retries=reward.max_retries,
        )

    async def check(self, prompt: Prompt) -> None:
        """Score an empty response once, so that a broken function ends the run before it starts.

        Raises ConfigError (it cannot be loaded) and DataError (it fails).
        """
        await self._score(prompt.data, [""], num_tries=1)

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        tokens = [sample.token_ids for sample in group.samples]
        if group.num_tokens > MAX_INLINE_TOKENS:
            responses = await asyncio.to_thread(response_texts, self._tokenizer, tokens)
        else:
            responses = response_texts(self._tokenizer, tokens)
        return await self._score(group.prompt.data, responses, num_tries=1 + self._max_retries)

    async def close(self) -> None:
        """Leave no process behind. Call it when nobody waits for a score any more; may be called twice."""
        self._closed = True
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def _score(self, data: Mapping[str, Any], responses: Sequence[str], num_tries: int) -> tuple[float, ...]:
        if self._inline is not None:
            return tuple(self._inline(data["prompt"], response, data) for response in responses)
        request = {"prompt": data["prompt"], "responses": list(responses), "data": dict(data)}
        problem = ""
        for attempt in range(1, num_tries + 1):
            reply = await self._try(request)
            if "rewards" in reply:
                return tuple(reply["rewards"])
            problem = reply["error"]
            if attempt < num_tries:  # the last one is told by the error
                logger.warning("scoring failed (try %d of %d): %s", attempt, num_tries, problem)
        tries = f" (tried {num_tries} times)" if num_tries > 1 else ""
        raise DataError(f"{problem}{tries}; prompt: {data['prompt'][:80]!r}")

    async def _try(self, request: Mapping[str, Any]) -> dict[str, Any]:
        worker = await self._idle.get()
        try:
            if self._closed:
                raise DataError(f"{self._spec}: the reward pool was closed before it scored the group")
            reply = await worker.call(request, self._timeout_s)
            self._has_worked = True
            return reply
        except WorkerFailure as failure:
            return {"error": f"{self._spec} {failure}"}
        except ConfigError as error:
            if not self._has_worked:
                raise
            return {"error": str(error)}
        finally:
            self._idle.put_nowait(worker)


def response_texts(tokenizer: PreTrainedTokenizerBase, responses: Sequence[Tokens]) -> list[str]:
    """Each response as text, up to its first eos token, without special tokens."""
    eos = tokenizer.eos_token_id
    cut = [list(ids[: ids.index(eos)]) if eos in ids else list(ids) for ids in responses]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # three times as fast as going through transformers
        return list(backend.decode_batch(cut, skip_special_tokens=True))
    return list(tokenizer.batch_decode(cut, skip_special_tokens=True))
