"""What a calibration shows and writes, and how well its scenario gives the runs back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from swingshift.config.document import to_yaml
from swingshift.config.loading import load_as
from swingshift.errors import ConfigError
from swingshift.sim.calibration_data import RunData
from swingshift.sim.calibration_fit import Calibration
from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_checks import check_scenario


@dataclass(frozen=True, slots=True)
class Check:
    """A run's measured seconds and those of its simulation with the fitted costs."""

    run: str
    wall_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        return self.simulated_s / self.wall_s - 1.0


def check_by_simulation(
    runs: Sequence[RunData], result: Calibration, on_result: Callable[[], None] = lambda: None
) -> list[Check]:
    """Simulate each run with its own settings."""
    checks = []
    for run in runs:
        lengths = {"lengths": result.scenario.workload.lengths}
        own = {"cost": result.scenario.cost, "workload": run.base.workload.model_copy(update=lengths)}
        scenario = run.base.model_copy(update=own)
        check_scenario(scenario)
        checks.append(Check(run.name, run.wall_s, float(run_scenario(scenario)["wall_s"])))
        on_result()
    return checks


def check_output(out: Path) -> None:
    """Raises ConfigError if there is something that is no scenario. Writes nothing."""
    if out.is_dir():
        raise ConfigError(f"--out={out}: is a folder; name a file")
    if out.exists() and out.stat().st_size:
        try:
            load_as(Scenario, [out], [])
        except ConfigError as error:
            raise ConfigError(f"--out={out}: holds something else than a scenario; name another file") from error


def write_scenario(scenario: Scenario, out: Path) -> None:
    """Raises ConfigError if the file cannot be written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(to_yaml(scenario, defaults=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out={out}: cannot be written ({error.strerror}); name another file") from error


def record_of(result: Calibration, checks: Sequence[Check]) -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "parameters": {key: asdict(parameter) for key, parameter in result.parameters.items()},
        "fits": {name: asdict(fit) for name, fit in result.fits.items()},
        "runs": [{**asdict(check), "error": check.error} for check in checks],
        "assumptions": list(result.assumptions),
        "scenario": result.scenario.model_dump(),
    }


def tables_of(result: Calibration, checks: Sequence[Check]) -> list[RenderableType]:
    """For people."""
    parameters = Table(title="Fitted costs (section cost)", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("key", "value", "95% interval", "from"):
        parameters.add_column(name, justify="right" if name in ("value", "95% interval") else "left")
    for key, parameter in result.parameters.items():
        interval = "" if parameter.low is None else f"{parameter.low:.4g} – {parameter.high:.4g}"
        parameters.add_row(key, f"{parameter.value:.4g}", interval, parameter.source)
    fits = Table(title="How well they fit", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("fit", "cycles", "R²", "typical error"):
        fits.add_column(name, justify="left" if name == "fit" else "right")
    for name, fit in result.fits.items():
        fits.add_row(name, str(fit.num_rows), f"{fit.r2:.4f}", f"{fit.relative_error:.1%} of a cycle's mean")
    walls = Table(title="The runs simulated", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("run", "measured", "simulated", "error"):
        walls.add_column(name, justify="left" if name == "run" else "right")
    for check in checks:
        walls.add_row(check.run, f"{check.wall_s:.2f} s", f"{check.simulated_s:.2f} s", f"{check.error:+.1%}")
    assumptions = "".join(f"  - {line}\n" for line in result.assumptions)
    return [parameters, "\n", fits, "\n", walls, f"\nassumptions:\n{assumptions}"]
