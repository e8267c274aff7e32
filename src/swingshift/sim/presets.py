"""Scenarios by name or file, with overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swingshift.config.keys import nearest_word
from swingshift.config.loading import load_as
from swingshift.errors import ConfigError
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_checks import check_scenario

FOLDER = Path(__file__).with_name("presets")
PUBLISHED = ("qwen3.5-35b-a3b-dapo", "separate-async-24xh100")
"""Presets of published measurements. All others are the suite: workloads made up to cover the ground."""


def preset_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def suite_names() -> list[str]:
    return [name for name in preset_names() if name not in PUBLISHED]


def load_scenario(source: str, overrides: Sequence[str] = ()) -> Scenario:
    """A preset's name or a YAML file, then ``section.key=value`` overrides.

    Raises ConfigError with one line per mistake, sorted by key.
    """
    scenario = load_as(Scenario, [_file_of(source)], overrides)
    check_scenario(scenario)
    return scenario


def _file_of(source: str) -> Path:
    if source.endswith((".yaml", ".yml")):
        return Path(source)
    path = FOLDER / f"{source}.yaml"
    if source in preset_names():
        return path
    if _is_file(Path(source)):
        return Path(source)
    near = nearest_word(source, preset_names())
    hint = f"did you mean {near}?" if near else "give a FILE.yaml, or a name that `swingshift simulate` lists"
    raise ConfigError(f"{source}: no preset and no file is called so; {hint}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # longer than any name of a file
        return False
