"""When and how a run's control state is written: after cycles, at the end, and after an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from swingshift.runtime.client import GenerationClient
from swingshift.runtime.control_state import ControlState
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.save_call import SaveCall
from swingshift.runtime.session_parts import Saver, SessionSettings

logger = logging.getLogger(__name__)


class Saving:
    """``read`` returns the control state at the moment it is called. Without a ``saver`` nothing is saved."""

    def __init__(
        self,
        saver: Saver | None,
        state: ControlState,
        read: Callable[[], dict[str, Any]],
        controller: DynamicResourceController,
        client: GenerationClient,
        settings: SessionSettings,
    ) -> None:
        self._saver = saver
        self._state = state
        self._read = read
        self._controller = controller
        self._client = client
        self._settings = settings
        self._call = SaveCall(settings.train_timeout_s)
        self._saved: tuple[int, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return self._call.is_under_way

    async def save(self) -> None:
        """Raises CheckpointError if it fails or takes too long."""
        if self._saver is not None:
            what = f"the checkpoint of version {self._state.train_loop.version}"
            await self._call.run(lambda: self._write(self._read(), self._state.progress()), what)

    async def save_at_the_end(self) -> None:
        """Unless the newest checkpoint says it all."""
        if self._state.rollouter.ledger.live or self._state.progress() != self._saved:
            await self._collect_tokens()
            await self.save()

    async def save_after(self, cause: BaseException) -> None:
        """What was trained is kept even when the run ends with an error, if the trainer still answers."""
        timeout_s, training = self._settings.call_timeout_s, self._state.training
        await training.settle(timeout_s)
        if training.is_in_doubt:
            # Saved as not trained, its groups might be trained twice, and as trained not at all.
            logger.error("nothing is saved while training is under way; the checkpoint before stands")
            cause.add_note("and nothing was saved, because training was still under way")
            return
        await self._call.settle(timeout_s)
        if self._call.is_under_way:
            logger.error("nothing more is saved while a checkpoint is being written; those before stand")
            cause.add_note("and nothing more was saved, because a checkpoint was still being written")
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.save()
        except Exception as error:  # Whatever it is, it must not hide what ended the run.
            logger.error("what was trained could not be saved: %r", error)
            cause.add_note(f"and the state could not be saved: {error!r}")

    async def abandon(self) -> None:
        """Leave no call behind."""
        await self._call.abandon()

    async def _write(self, state: Mapping[str, Any], progress: tuple[int, ...]) -> None:
        assert self._saver is not None
        await self._saver.save(state["version"], state)
        self._saved = progress

    async def _collect_tokens(self) -> None:
        """What replicas have generated of unfinished responses so far belongs into the last checkpoint."""
        settings, ledger = self._settings, self._state.rollouter.ledger
        if self._saver is None or not settings.partial_rollout or not ledger.num_in_flight:
            return
        try:
            async with asyncio.timeout(settings.call_timeout_s):
                await self._controller.abort_all()
                await self._client.idle()
        except TimeoutError:
            logger.warning("some replicas did not return what they had generated; it is generated again")
