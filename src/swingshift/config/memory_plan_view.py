"""A memory plan for people (lines of a table) and for programs (a record)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swingshift.config.memory_plan import GIB, DeviceState, MemoryPlan
from swingshift.config.memory_plan_verdict import Verdict

Line = tuple[str, ...]
"""A name and one cell a state."""


def device_table(devices: Sequence[DeviceState], capacity: int | None) -> tuple[Line, list[Line]]:
    """Heading and lines: what one device of each kind holds, a column a state."""
    heading = ("one device", *(d.state if d.device == d.state else f"{d.device}, {d.state}" for d in devices))
    return heading, _lines([d.parts for d in devices], capacity)


def machine_table(plan: MemoryPlan) -> tuple[Line, list[Line]]:
    """The same for the memory of this machine."""
    heading = ("this machine's memory", *(f"trainer {m.state}" for m in plan.machine))
    return heading, _lines([m.parts for m in plan.machine], plan.capacity.machine_bytes)


def _lines(columns: Sequence[Mapping[str, int]], capacity: int | None) -> list[Line]:
    names = dict.fromkeys(name for column in columns for name in column)
    lines = [(name, *(_cell(column.get(name, 0)) for column in columns)) for name in names]
    totals = [sum(column.values()) for column in columns]
    lines.append(("total", *(_cell(total) for total in totals)))
    if capacity is not None:
        lines.append(("of", *(_cell(capacity) for _ in columns)))
        lines.append(("", *(f"{total / capacity:.0%}" for total in totals)))
    return lines


def _cell(num_bytes: int) -> str:
    if num_bytes == 0:
        return "-"
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:.2f} MiB"


def facts(plan: MemoryPlan) -> str:
    """One line about the model and the caches."""
    slots = ", ".join(f"{number} on a {device} device" for device, number in plan.slots.items())
    cached = f"; responses cached: {slots}" if slots else ""
    return f"{plan.sizes.num_params:,} parameters as {plan.dtype}, devices: {plan.device_kind}{cached}"


def summary(plan: MemoryPlan) -> str:
    """One line about the totals."""
    devices = [f"{d.device} device {d.state} {_cell(d.total)}" for d in plan.devices]
    machine = max(m.total for m in plan.machine)
    return f"memory expected: {', '.join(devices)}; this machine at most {_cell(machine)}"


def to_record(plan: MemoryPlan, verdict: Verdict) -> dict[str, Any]:
    """Plain values; bytes everywhere, None where a capacity is not known."""
    return {
        "device_kind": plan.device_kind,
        "num_params": plan.sizes.num_params,
        "dtype": plan.dtype,
        "device_capacity_bytes": plan.capacity.device_bytes,
        "machine_capacity_bytes": plan.capacity.machine_bytes,
        "slot_bytes": plan.slot_bytes,
        "num_slots": dict(plan.slots),
        "devices": [
            {"device": d.device, "state": d.state, "parts": dict(d.parts), "total_bytes": d.total}
            for d in plan.devices
        ],
        "machine": [{"state": m.state, "parts": dict(m.parts), "total_bytes": m.total} for m in plan.machine],
        "fits": not verdict.errors,
        "errors": list(verdict.errors),
        "warnings": list(verdict.warnings),
    }
