"""A soak case in one line, so that it can be pasted into a shell, and back.

::

    mode=sync,num_prompts=6,seed=2154; hybrid-0.wake_up#2=oom; trainer.train#1=late~31.0; run@2.4/1=stop

Sizes that are not named have their defaults. A fault is ``CALL#NTH=KIND[~SECONDS]``, or at a moment
``PROCESS@SECONDS/SESSION=KIND[~FROZEN_SECONDS]``.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from swingshift.errors import ConfigError
from swingshift.sim.fault_plan import Fault, FaultKind, can_happen
from swingshift.sim.soak_run import SoakCase
from swingshift.sim.soak_world import Mode, SoakWorld

_CALL = re.compile(r"(?P<where>[\w*-]+\.[\w*]+)#(?P<nth>[1-9]\d*)=(?P<kind>\w+)(~(?P<seconds>[\d.e-]+|inf))?")
_MOMENT = re.compile(
    r"(?P<where>[\w-]+)@(?P<seconds>[\d.e-]+)/(?P<nth>[1-9]\d*)=(?P<kind>\w+)(~(?P<frozen_s>[\d.e-]+|inf))?"
)
_DEFAULT = SoakWorld()


def to_text(case: SoakCase) -> str:
    values = {f.name: getattr(case.world, f.name) for f in fields(SoakWorld)}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULT, name)}
    sizes = ",".join(f"{name}={_plain(value)}" for name, value in {"mode": case.world.mode, **changed}.items())
    return "; ".join([sizes, *map(_fault_text, case.plan)])


def _plain(value: object) -> str:
    return value.value if isinstance(value, Mode) else repr(value).strip("'")


def _fault_text(fault: Fault) -> str:
    if fault.is_timed:
        lasting = f"~{fault.frozen_s!r}" if fault.kind is FaultKind.FREEZE else ""
        return f"{fault.where}@{fault.seconds!r}/{fault.nth}={fault.kind.value}{lasting}"
    seconds = f"~{fault.seconds!r}" if fault.seconds else ""
    return f"{fault.where}#{fault.nth}={fault.kind.value}{seconds}"


def from_text(text: str) -> SoakCase:
    """Raises ConfigError for anything that ``to_text`` would not write."""
    sizes, *faults = (part.strip() for part in text.split(";"))
    values = dict(_value(item) for item in sizes.split(",") if item.strip())
    world = SoakWorld(**values)
    return SoakCase(world.seed, world, tuple(map(_fault, faults)))


def _value(item: str) -> tuple[str, Any]:
    name, _, text = item.strip().partition("=")
    kind = {f.name: str(f.type) for f in fields(SoakWorld)}.get(name)
    if kind is None:
        raise ConfigError(f"--replay: {item.strip()!r} names no size of a world; give a seed, or what a soak printed")
    default = getattr(_DEFAULT, name)
    try:
        if name == "mode":
            return name, Mode(text)
        if isinstance(default, str):
            return name, text
        if text == "None" and "None" in kind:
            return name, None
        if kind == "bool":
            return name, {"True": True, "False": False}[text]
        number = float(text) if isinstance(default, float) else int(text)
        if number < 0 and name.startswith("num_"):
            raise ValueError(text)
        return name, number
    except (KeyError, ValueError):
        raise ConfigError(f"--replay: {name}={text}: is no {kind} that a soak draws; copy what it printed") from None


def _fault(text: str) -> Fault:
    found = _CALL.fullmatch(text) or _MOMENT.fullmatch(text)
    kinds = {kind.value: kind for kind in FaultKind}
    wrong = f"--replay: {text!r} is no fault; write CALL#NTH=KIND or PROCESS@SECONDS/SESSION=KIND"
    if found is None or found["kind"] not in kinds or not can_happen(found["where"], kinds[found["kind"]]):
        raise ConfigError(wrong)
    parts = {name: value for name, value in found.groupdict().items() if value is not None}
    try:
        seconds = {name: float(parts[name]) for name in ("seconds", "frozen_s") if name in parts}
    except ValueError:
        raise ConfigError(wrong) from None
    return Fault(parts["where"], FaultKind(parts["kind"]), int(parts["nth"]), **seconds)
