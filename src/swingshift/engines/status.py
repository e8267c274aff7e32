"""What an engine says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swingshift.core.types import WeightVersion


class EngineState(StrEnum):
    ASLEEP = "asleep"
    PAUSED = "paused"
    ACCEPTING = "accepting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """``num_running`` and ``num_waiting`` count responses; counters run from the engine's start.

    ``refusing``: new requests fail with NotAcceptingError (asleep, or aborted with ``refuse``).
    ``weight_bytes``: memory of its own, so without a trainer's parameters it only reads.
    ``num_prefilled_tokens``: context tokens computed by prefills, the last one of each context included;
    ``busy_s``: seconds spent in prefill and decode.
    """

    state: EngineState
    refusing: bool
    weight_version: WeightVersion
    num_slots: int
    num_running: int
    num_waiting: int
    kv_cache_bytes: int
    weight_bytes: int
    num_prefilled_tokens: int
    num_decoded_tokens: int
    num_decode_steps: int
    busy_s: float
