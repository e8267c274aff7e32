"""The colours of everything that is drawn, chosen to stay apart for every common kind of colour blindness."""

from __future__ import annotations

from dataclasses import dataclass

from swingshift.core.types import DeviceState


@dataclass(frozen=True, slots=True)
class Theme:
    """What a page looks like on a light or a dark screen; colours as ``#rrggbb``."""

    background: str
    surface: str
    ink: str
    muted: str
    line: str
    states: dict[DeviceState, str]
    runs: tuple[str, ...]


LIGHT = Theme(
    background="#FFFFFF",
    surface="#F6F7F8",
    ink="#222222",
    muted="#5C6166",
    line="#DADDE0",
    states={
        DeviceState.ROLLOUT: "#4C9BD6",
        DeviceState.TRAIN: "#F2C14E",
        DeviceState.SWITCHING: "#C8401F",
        DeviceState.SYNCING: "#8A8A8A",
        DeviceState.IDLE: "#F3F3F3",
    },
    runs=("#0072B2", "#C2410C", "#00795A", "#A8467F", "#6B5B00", "#555555"),
)
DARK = Theme(
    background="#14171A",
    surface="#1D2125",
    ink="#E8EAEC",
    muted="#A3A9AF",
    line="#3A4046",
    states={
        DeviceState.ROLLOUT: "#4C9BD6",
        DeviceState.TRAIN: "#F2C14E",
        DeviceState.SWITCHING: "#E5603F",
        DeviceState.SYNCING: "#8F959B",
        DeviceState.IDLE: "#262B30",
    },
    runs=("#56B4E9", "#F28E4B", "#35C79A", "#E79AC6", "#D9C645", "#B5BABF"),
)

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Of the runs' lines, beside their colours."""
