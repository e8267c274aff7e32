"""``swingshift plan --memory``: returns what to show, prints nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import RenderableType
from rich.table import Table

from swingshift.cluster.memory import plan_memory
from swingshift.config.layers import is_override
from swingshift.config.memory_plan_view import Line, device_table, facts, machine_table, to_record
from swingshift.config.plan import resolve_device_kind
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError
from swingshift.sim.memory import memory_verdict, scenario_memory
from swingshift.sim.presets import load_scenario, preset_names
from swingshift.sim.scenario import Scenario

Shown = list[RenderableType]
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SCENARIO_ONLY = {"cluster", "device", "efficiency", "cost", "generation", "workload"}


def scenario_of(inputs: Sequence[str]) -> Scenario | None:
    """The scenario that the words of the command line name, None if they name a training run's configuration."""
    sources = [text for text in inputs if not is_override(text)]
    if len(sources) != 1 or not (sources[0] in preset_names() or _is_scenario_file(Path(sources[0]))):
        return None
    return load_scenario(sources[0], [text for text in inputs if is_override(text)])


def _is_scenario_file(path: Path) -> bool:
    """Has it a section that only scenarios have? What cannot be read is for the loader to explain."""
    try:
        values = yaml.safe_load(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RuntimeError, yaml.YAMLError):
        return False
    return isinstance(values, dict) and not _SCENARIO_ONLY.isdisjoint(values)


def show_run(config: SwingshiftConfig, *, device_memory: str | None, as_json: bool) -> tuple[Shown, list[str]]:
    """For a training run: what to show, and what is wrong, one line each."""
    device_bytes = None if device_memory is None else parse_size(device_memory)
    if device_bytes is not None and config.trainer.device == "cpu":
        raise ConfigError(
            f"--device-memory={device_memory}: with trainer.device=cpu devices have no memory of their own; "
            "leave it out"
        )
    kind = "cuda" if device_bytes is not None else resolve_device_kind(config)
    found = plan_memory(config, kind, device_bytes)
    plan, verdict = found.plan, found.verdict
    if as_json:
        return [f"{json.dumps(to_record(plan, verdict), indent=2)}\n"], list(verdict.errors)
    notes = [facts(plan)]
    if kind == "cuda" and plan.capacity.device_bytes is None:
        notes.append("there is no GPU here, so nothing was compared; --device-memory says what one has")
    notes += [f"warning: {line}" for line in verdict.warnings]
    tables: Shown = [_table(*device_table(plan.devices, plan.capacity.device_bytes)), "\n"]
    tables.append(_table(*machine_table(plan)))
    return [*tables, "\n", "".join(f"{line}\n" for line in notes)], list(verdict.errors)


def show_scenario(scenario: Scenario, *, as_json: bool) -> tuple[Shown, list[str]]:
    """The same for a scenario of the simulator, as far as it tells."""
    devices, (errors, warnings) = scenario_memory(scenario), memory_verdict(scenario)
    capacity = round(scenario.device.memory_bytes)
    if as_json:
        record = {
            "name": scenario.name,
            "device_capacity_bytes": capacity,
            "devices": [
                {"device": d.device, "state": d.state, "parts": dict(d.parts), "total_bytes": d.total}
                for d in devices
            ],
            "fits": not errors,
            "errors": errors,
            "warnings": warnings,
        }
        return [f"{json.dumps(record, indent=2)}\n"], errors
    notes = [
        f"{scenario.name}: training state is sharded over all trainer devices; activations are not known",
        *(f"warning: {line}" for line in warnings),
    ]
    return [_table(*device_table(devices, capacity)), "\n", "".join(f"{line}\n" for line in notes)], errors


def parse_size(text: str) -> int:
    """``80e9``, ``80GB``, ``74.5GiB``. Raises ConfigError."""
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kmgt]i?b)?", text.strip().lower())
    try:
        size = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise ConfigError(f"--device-memory={text}: is no size; give bytes, or a number with a unit such as 80GB")
    return size


def _table(heading: Line, lines: list[Line]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for index, name in enumerate(heading):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line, style="bold" if line[0] == "total" else None)
    return table
