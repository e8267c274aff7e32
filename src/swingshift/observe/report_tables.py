"""The tables of the report as HTML: summary, decisions, configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from swingshift.core.utilization import ratio
from swingshift.observe.summary import format_seconds

MAX_DECISIONS = 1000
"""Rows of a run's decisions on the page; the file has all."""

Summary = Mapping[str, Any]
_NONE = "–"
_QUESTIONS = {
    "lend": "lend the trainer's devices?",
    "take_back": "take them back?",
    "rebalance": "move requests?",
}
_FIXED_KEYS = ("time_s", "version", "question", "answer", "reason")


# --- summary ------------------------------------------------------------------------------------------------------


def _reward(summary: Summary) -> str:
    first, last = summary.get("reward_first_tenth"), summary.get("reward_last_tenth")
    return _NONE if first is None or last is None else f"{first:.3f} → {last:.3f}"


def _switching(summary: Summary) -> str:
    count = summary["num_activations"] + summary["num_deactivations"]
    if not count:
        return _NONE
    return f"{summary['switch_s']:.2f} s ({1e3 * ratio(summary['switch_s'], count):,.0f} ms a switch)"


def _share(key: str) -> Callable[[Summary], str]:
    return lambda summary: f"{summary[key]:.1%}"


_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("ended", lambda s: str(s["exit_reason"])),
    ("time", lambda s: format_seconds(s["wall_s"])),
    ("cycles", lambda s: f"{s['num_cycles']:,}"),
    ("groups trained on", lambda s: f"{s['num_consumed_groups']:,}"),
    ("failed / dropped groups", lambda s: f"{s['num_failed_groups']:,} / {s['num_dropped_groups']:,}"),
    ("reward, first → last tenth", _reward),
    ("tokens/s", lambda s: f"{s['tokens_per_s']:,.0f}"),
    ("staleness, mean / largest", lambda s: f"{s['staleness_mean']:.2f} / {s['staleness_max']}"),
    ("partial responses", lambda s: f"{ratio(s['num_partial_samples'], s['num_consumed_trajectories']):.1%}"),
    ("tokens computed again", lambda s: f"{s['num_reprefilled_tokens']:,}"),
    ("lent / taken back", lambda s: f"{s['num_activations']:,} / {s['num_deactivations']:,}"),
    ("switching", _switching),
    ("weight syncs", lambda s: f"{s['param_sync_s']:.2f} s"),
    ("utilization, all devices", _share("resource_utilization")),
    ("utilization, rollout", _share("rollout_resource_utilization")),
    ("utilization, training", _share("train_resource_utilization")),
    ("devices busy", _share("device_busy_ratio")),
    ("work-conserving bound over time (T*/T)", _share("efficiency")),
)


def summary_table(summaries: Mapping[str, Summary]) -> str:
    """A column a run. Rows that no run can fill are left out."""
    rows = [(label, [_cell(show, summary) for summary in summaries.values()]) for label, show in _ROWS]
    if len(summaries) > 1:
        walls = [summary.get("wall_s", 0.0) for summary in summaries.values()]
        rows.insert(2, ("times as fast as the first", [f"{ratio(walls[0], wall):.3f}" for wall in walls]))
    return _table(["", *summaries], [[label, *cells] for label, cells in rows if any(c != _NONE for c in cells)])


def _cell(show: Callable[[Summary], str], summary: Summary) -> str:
    try:
        return show(summary)
    except (KeyError, TypeError, ValueError):  # An older run, or a newer one, may lack it.
        return _NONE


# --- decisions ----------------------------------------------------------------------------------------------------


def decisions_section(name: str, decisions: Sequence[Mapping[str, Any]], *, was_recorded: bool) -> str:
    """One run's decisions, newest first, and how often each question was answered how."""
    heading = f"<summary><strong>{escape(name)}</strong> {escape(_answers(decisions))}</summary>"
    if not decisions:
        nothing = "nothing was asked: nothing could be lent" if was_recorded else "were not recorded by this run"
        return f"<p><strong>{escape(name)}</strong> {nothing}</p>"
    shown = list(reversed(decisions))[:MAX_DECISIONS]
    note = ""
    if len(shown) < len(decisions):
        note = f"<p>The newest {len(shown):,} of {len(decisions):,}; all are in <code>decisions.jsonl</code>.</p>"
    table = _table(["version", "time", "question", "answer", "why", "from"], [_decision(record) for record in shown])
    return f"<details open>{heading}{note}{table}</details>"


def _answers(decisions: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter((str(d.get("question")), str(d.get("answer"))) for d in decisions)
    return ", ".join(f"{question}: {answer} {count:,}×" for (question, answer), count in sorted(counts.items()))


def _decision(record: Mapping[str, Any]) -> list[str]:
    numbers = [f"{name}\u00a0{_number(value)}" for name, value in record.items() if name not in _FIXED_KEYS]
    question = str(record.get("question", ""))
    return [
        str(record.get("version", "")),
        format_seconds(float(record["time_s"])),
        _QUESTIONS.get(question, question),
        str(record.get("answer", "")),
        str(record.get("reason", "")),
        " · ".join(numbers),
    ]


def _number(value: Any) -> str:
    if not isinstance(value, int | float):
        return _NONE if value is None else str(value)
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


# --- configuration ------------------------------------------------------------------------------------------------


def settings_table(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What differs between runs, a column a run; of a single one everything."""
    keys = list(dict.fromkeys(key for values in settings.values() for key in values))
    rows = []
    for key in keys:
        cells = [_setting(values[key]) if key in values else _NONE for values in settings.values()]
        if len(cells) == 1 or len(set(cells)) > 1:
            rows.append([key, *cells])
    if not rows:
        return "<p>There is nothing to show: the runs have the same configuration, or none was written.</p>"
    table = _table(["key", *settings], rows)
    return f"<details><summary>all {len(rows)} keys</summary>{table}</details>" if len(settings) == 1 else table


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- html ---------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Scrolls by itself where the page is narrow. The first cell of a row names it."""
    cells = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    lines = [
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in rest)}</tr>'
        for first, *rest in rows
    ]
    body = "\n".join(lines)
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{cells}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )
