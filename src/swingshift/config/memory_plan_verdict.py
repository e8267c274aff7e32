"""Does it fit? What does not becomes an error that says which key to change, and to what; a tight fit, a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from swingshift.config.keys import format_value
from swingshift.config.memory_plan import (
    GIB,
    Capacity,
    Device,
    DeviceState,
    MachineState,
    MemoryPlan,
    make_memory_plan,
)
from swingshift.config.memory_plan_model import ModelSizes
from swingshift.config.memory_plan_parts import max_model_len
from swingshift.config.schema import SwingshiftConfig

TIGHT = 0.9
"""Share of a capacity above which a state that fits is warned about."""

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MAX_TOKENS = f"{_ACTOR}.ppo_max_token_len_per_gpu"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line each. ``errors`` empty: the run may start."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Over:
    """A state that takes more than there is. ``find``: the same state in another plan."""

    where: str
    parts: Mapping[str, int]
    capacity: int
    knobs: tuple[str, ...]
    otherwise: str
    find: Callable[[MemoryPlan], DeviceState | MachineState | None]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def hint(self) -> str:
        """What to do should it not be enough after all."""
        if not self.knobs:
            return ""
        return f"; should it run out, lower {self.knobs[0] if _MAX_TOKENS in self.knobs else self.knobs[-1]}"


@dataclass(frozen=True, slots=True)
class _Judge:
    """Tries values of keys out."""

    config: SwingshiftConfig
    sizes: ModelSizes
    device_kind: str
    capacity: Capacity

    def plan(self, config: SwingshiftConfig) -> MemoryPlan:
        return make_memory_plan(config, self.sizes, self.device_kind, self.capacity)

    def with_value(self, key: str, value: int | float | bool) -> SwingshiftConfig:
        changed = self.config.model_copy(deep=True)
        *path, leaf = key.split(".")
        section: object = changed
        for name in path:
            section = getattr(section, name)
        setattr(section, leaf, value)
        return changed

    def fits(self, over: _Over, key: str, value: int | float | bool) -> bool:
        state = over.find(self.plan(self.with_value(key, value)))
        return state is not None and state.total <= over.capacity


def judge(config: SwingshiftConfig, sizes: ModelSizes, device_kind: str, capacity: Capacity) -> Verdict:
    judges = _Judge(config, sizes, device_kind, capacity)
    plan = judges.plan(config)
    errors = [*_no_slot(config, plan)]
    warnings = []
    for state in _states(config, plan):
        if state.total > state.capacity:
            errors.append(_too_much(judges, state))
        elif state.total > TIGHT * state.capacity:
            warnings.append(
                f"{state.where} takes {_size(state.total)} of {_size(state.capacity)} "
                f"({state.total / state.capacity:.0%}){state.hint}"
            )
    return Verdict(tuple(errors), tuple(warnings))


def _states(config: SwingshiftConfig, plan: MemoryPlan) -> Iterator[_Over]:
    """Every state whose capacity is known."""
    device_bytes, machine_bytes = plan.capacity.device_bytes, plan.capacity.machine_bytes
    if device_bytes is not None:
        for d in plan.devices:
            where = f"a {d.device} device" if d.state == "rollout" else f"a {d.device} device while {_WHILE[d.state]}"
            yield _Over(where, d.parts, device_bytes, _device_knobs(config, d), "larger devices", _device_finder(d))
    if machine_bytes is not None:
        for m in plan.machine:
            where = f"this machine's memory while the trainer's devices are {_WHILE[m.state]}"
            yield _Over(
                where, m.parts, machine_bytes, _machine_knobs(config, plan, m), "fewer devices", _machine_finder(m)
            )


_WHILE = {"training": "training", "switching": "switching", "lent": "lent"}


def _device_finder(wanted: DeviceState) -> Callable[[MemoryPlan], DeviceState | None]:
    return lambda plan: next((d for d in plan.devices if d.state == wanted.state), None)


def _machine_finder(wanted: MachineState) -> Callable[[MemoryPlan], MachineState | None]:
    return lambda plan: next((m for m in plan.machine if m.state == wanted.state), None)


# --- which keys help ----------------------------------------------------------------------------------------


def _device_knobs(config: SwingshiftConfig, state: DeviceState) -> tuple[str, ...]:
    match state.state:
        case "training":
            return (_MAX_TOKENS,)
        case "switching":
            return ()
        case "lent":
            return (*_kept_while_lent(config, "cuda"), _kv_key(config, "cuda", "trainer"))
        case "rollout":
            return (_kv_key(config, "cuda", "rollout"),)


def _machine_knobs(config: SwingshiftConfig, plan: MemoryPlan, state: MachineState) -> tuple[str, ...]:
    if plan.device_kind == "cuda":
        return ()
    caches = (_kv_key(config, "cpu", "rollout"),) if plan.slots else ()
    return (_MAX_TOKENS, *caches) if state.state == "training" else (*_kept_while_lent(config, "cpu"), *caches)


def _kept_while_lent(config: SwingshiftConfig, device_kind: str) -> tuple[str, ...]:
    actor = config.actor_rollout_ref.actor
    kept = [] if actor.optimizer_offload or device_kind == "cpu" else [f"{_ACTOR}.optimizer_offload"]
    return (*kept, *([] if actor.free_gradients else [f"{_ACTOR}.free_gradients"]))


def _kv_key(config: SwingshiftConfig, device_kind: str, device: Device) -> str:
    rollout = config.actor_rollout_ref.rollout
    if rollout.kv_cache_memory_bytes is not None:
        return f"{_ROLLOUT}.kv_cache_memory_bytes"
    if device_kind == "cpu":
        return f"{_ROLLOUT}.max_num_seqs"
    if device == "rollout" and rollout.standalone_gpu_memory_utilization is not None:
        return f"{_ROLLOUT}.standalone_gpu_memory_utilization"
    return f"{_ROLLOUT}.gpu_memory_utilization"


# --- what to say --------------------------------------------------------------------------------------------


def _too_much(judges: _Judge, over: _Over) -> str:
    largest = sorted(((size, name) for name, size in over.parts.items() if size), reverse=True)[:4]
    shown = ", ".join(f"{name} {_size(size)}" for size, name in largest)
    facts = (
        f"{over.where} takes {_size(over.total)} ({shown}), {_size(over.total - over.capacity)} more than the "
        f"{_size(over.capacity)} there are"
    )
    for key in over.knobs:
        best = _best_value(judges, over, key)
        if best is not None:
            return f"{key}={format_value(_value(judges.config, key))}: {facts}; {_order(best)}"
    tried = f", and changing {' or '.join(over.knobs)} alone cannot help" if over.knobs else ""
    path = judges.config.actor_rollout_ref.model.path
    return f"actor_rollout_ref.model.path={path}: {facts}{tried}; give a smaller model, or {over.otherwise}"


def _order(best: int | float | bool) -> str:
    return "set it to true" if best is True else f"lower it to {format_value(best)} or less"


def _best_value(judges: _Judge, over: _Over, key: str) -> int | float | bool | None:
    """The largest value with which the state fits, None if there is none."""
    current = _value(judges.config, key)
    if isinstance(current, bool):
        return True if judges.fits(over, key, True) else None
    if isinstance(current, float):
        steps = _largest(1, int(current * 100), lambda n: judges.fits(over, key, n / 100))
        return None if steps is None or not _has_slots(judges, key, steps / 100) else steps / 100
    low = {_MAX_TOKENS: max_model_len(judges.config)}.get(key, 1)
    if key.endswith("kv_cache_memory_bytes"):
        low = judges.plan(judges.config).slot_bytes
    return _largest(low, current, lambda n: judges.fits(over, key, n))


def _has_slots(judges: _Judge, key: str, value: float) -> bool:
    return all(judges.plan(judges.with_value(key, value)).slots.values())


def _largest(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest whole number for which ``works``, which holds up to some number and not above it."""
    if low > high or not works(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if works(middle) else (low, middle - 1)
    return low


def _no_slot(config: SwingshiftConfig, plan: MemoryPlan) -> Iterator[str]:
    for device, num_slots in plan.slots.items():
        if num_slots:
            continue
        key = _kv_key(config, plan.device_kind, device)
        yield (
            f"{key}={format_value(_value(config, key))}: the KV cache of a replica on a {device} device has no room "
            f"for one response of {_size(plan.slot_bytes)}; raise it, or shorten data.max_prompt_length or "
            f"{_ROLLOUT}.response_length"
        )


def _value(config: SwingshiftConfig, key: str) -> int | float | bool:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    assert isinstance(value, int | float)
    return value


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:.1f} MiB"
