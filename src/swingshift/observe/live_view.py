"""The live view: a run on one screen, the same for ``swingshift train`` on a terminal and for ``swingshift top``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from swingshift.observe.live_lanes import LaneHistory, legend
from swingshift.observe.live_state import LiveState, ReplicaState, ReplicaStatus
from swingshift.observe.spans import lane_order
from swingshift.observe.summary import format_seconds

_LABEL_WIDTH = 11
_LANE_LABEL_WIDTH = 20
_NUMBER_WIDTH = 11
_BAR_WIDTH = 20
_MAX_REPLICAS = 8
_SPARKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NUM_SPARKS = 40
_HEIGHT_WITHOUT_LANES = 14


@dataclass(frozen=True, slots=True)
class Status:
    """The newest cycle in words."""

    cycle: int
    reward: float
    queue: int
    lent: str
    train: float
    rollout: float
    cluster: float
    tokens_per_s: float
    staleness_mean: float
    staleness_max: int
    cycle_s: float
    decision: str

    def parts(self) -> tuple[str, ...]:
        return (f"reward {self.reward:.3f}", f"queue {self.queue}", self.lent, self.utilization, self.tokens)

    @property
    def utilization(self) -> str:
        return f"utilization {self.cluster:.0%} (train {self.train:.0%}, rollout {self.rollout:.0%})"

    @property
    def tokens(self) -> str:
        return f"{self.tokens_per_s:,.0f} tok/s"


_LENT = {
    "STANDALONE_ONLY": "trainer keeps its devices",
    "ACTIVATING": "lending …",
    "HYBRID_ACTIVE": "devices lent",
    "DEACTIVATING": "taking devices back …",
}


def lent_words(state: str) -> str:
    return _LENT.get(state.upper(), state)


def read_status(row: Mapping[str, float | None], state: str, decision: str) -> Status:
    """``row`` is one of ``CycleMetrics``, perhaps read back from a file; what it lacks is shown as 0."""

    def get(name: str) -> float:
        return float(row.get(name) or 0.0)

    return Status(
        cycle=int(get("training/global_step")),
        reward=get("critic/rewards/mean"),
        queue=int(get("dynamic_resource/mq_size")),
        lent=lent_words(state),
        train=get("dynamic_resource/train_resource_utilization"),
        rollout=get("dynamic_resource/rollout_resource_utilization"),
        cluster=get("dynamic_resource/resource_utilization"),
        tokens_per_s=get("perf/tokens_per_s"),
        staleness_mean=get("fully_async/staleness/mean"),
        staleness_max=int(get("fully_async/staleness/max")),
        cycle_s=get("fully_async/rollouter/version_time_s"),
        decision=decision,
    )


def cycle_text(cycle: int, num_cycles: int | None) -> str:
    return f"cycle {cycle}" if num_cycles is None else f"cycle {cycle}/{num_cycles}"


@dataclass(frozen=True, slots=True)
class LiveView:
    """Everything on the screen. What is not known is left out: ``live`` of a run that has ended, for instance."""

    title: str
    elapsed_s: float
    lanes: LaneHistory
    status: Status | None = None
    live: LiveState | None = None
    num_cycles: int | None = None
    left_s: float | None = None
    rewards: Sequence[float] = field(default=())
    news: str = ""
    """What else there is to say, in a line of its own."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        height = options.height or console.height
        for line in self._lines(width, max(2, height - _HEIGHT_WITHOUT_LANES)):
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True  # it fits; rich need not find that out
            yield line

    def _lines(self, width: int, max_lanes: int) -> Iterator[Text]:
        yield self._header(width)
        if self.news:
            yield Text(self.news, style="bold")
        if self.status is not None:
            yield _reward_line(self.status, self.rewards)
        if self.live is not None:
            yield from _level_lines(self.live)
        elif self.status is not None:
            yield _labelled("queue", f"{self.status.queue}")
        if self.status is not None:
            yield from _cycle_lines(self.status, width)
        yield from self._decision_lines(width)
        yield from self._lane_lines(width, max_lanes)

    def _header(self, width: int) -> Text:
        cycle = self.status.cycle if self.status else 0
        left = Text.assemble((self.title, "bold"), "  ", cycle_text(cycle, self.num_cycles))
        right = format_seconds(self.elapsed_s)
        if self.left_s is not None:
            right += f", {format_seconds(self.left_s)} left"
        room = width - left.cell_len - len(right) - 4
        if self.num_cycles and room >= 8:
            left.append("  ")
            left.append_text(_bar(cycle / self.num_cycles, min(room, 40), "green"))
        left.append(f"  {right}")
        return left

    def _decision_lines(self, width: int) -> Iterator[Text]:
        """Who has the devices, and why: the reason is what people want to read in full, so it may take two lines."""
        state = lent_words(self.live.lending) if self.live else self.status.lent if self.status else ""
        if state:
            yield _labelled("lending", state)
        decision = self.status.decision if self.status else self.live.decision if self.live else ""
        room = max(20, width - _LABEL_WIDTH)
        lines = Text(decision).wrap(Console(width=room), room)[:2] if decision else ()
        for i, line in enumerate(lines):
            yield _labelled("decision" if i == 0 else "", line.plain)

    def _lane_lines(self, width: int, max_lanes: int) -> Iterator[Text]:
        current = self.live.devices if self.live else {}
        now_s = self.live.time_s if self.live else self.lanes.end_s
        label_width = min(_LANE_LABEL_WIDTH, width // 3)
        rows = self.lanes.rows(width - label_width, now_s, current, max_lanes)
        if not rows:
            return
        yield Text("")
        for name, cells in rows:
            yield Text.assemble((f"{name[: label_width - 1]:<{label_width}}", "bold"), cells)
        yield _axis(rows[0][1].cell_len, label_width, self.lanes.window_s)
        yield Text(" " * label_width) + legend()


def _labelled(label: str, text: str | Text) -> Text:
    return Text.assemble((f"{label:<{_LABEL_WIDTH}}", "bold"), text)


def _reward_line(status: Status, rewards: Sequence[float]) -> Text:
    line = _labelled("reward", f"{status.reward:<{_NUMBER_WIDTH}.3f}")
    if len(rewards) > 1:
        line.append(sparkline(rewards[-_NUM_SPARKS:]), "green")
        line.append(f"  last {min(len(rewards), _NUM_SPARKS)} cycles", "dim")
    return line


def _level_lines(live: LiveState) -> Iterator[Text]:
    levels = (
        ("queue", live.num_queued, live.queue_capacity, "finished groups"),
        ("budget", live.staleness_samples, live.max_required_samples, "staleness budget used"),
        ("in flight", live.num_inflight, live.max_concurrent_samples, "groups"),
    )
    for name, value, limit, words in levels:
        if value is None:
            continue
        number = f"{value}" if limit is None else f"{value} / {limit}"
        line = _labelled(name, f"{number:<{_NUMBER_WIDTH}}")
        if limit:
            line.append_text(_bar(value / limit, _BAR_WIDTH, "cyan"))
            line.append("  ")
        line.append(words, "dim")
        yield line
    yield _labelled("replicas", " · ".join(_replica_words(live.replicas)))


def _replica_words(replicas: Sequence[ReplicaState]) -> Iterable[str]:
    """``standalone-0 4`` each; with many replicas one entry a kind."""
    if len(replicas) <= _MAX_REPLICAS:
        ordered = sorted(replicas, key=lambda r: lane_order(r.id))
        return [f"{r.id} {_load(r)}" for r in ordered]
    words = []
    for kind in dict.fromkeys(r.kind for r in replicas):
        mine = [r for r in replicas if r.kind == kind]
        loads = [r.num_inflight for r in mine if r.status is ReplicaStatus.SERVING]
        spread = f", {min(loads)} to {max(loads)} each" if loads else ""
        others = [
            f", {n} {status.value}"
            for status in (ReplicaStatus.PAUSED, ReplicaStatus.ASLEEP, ReplicaStatus.DEAD)
            if (n := sum(r.status is status for r in mine))
        ]
        words.append(f"{kind} × {len(mine)}: {sum(loads)}{spread}{''.join(others)}")
    return words


def _load(replica: ReplicaState) -> str:
    return str(replica.num_inflight) if replica.status is ReplicaStatus.SERVING else replica.status.value


def _cycle_lines(status: Status, width: int) -> Iterator[Text]:
    """What the newest cycle measured, on one line if it fits."""
    staleness = f"staleness mean {status.staleness_mean:.2f}, max {status.staleness_max}"
    parts = [status.utilization.removeprefix("utilization "), status.tokens, staleness]
    whole = " · ".join(parts)
    if _LABEL_WIDTH + len(whole) <= width:
        yield _labelled("utilized", whole)
        return
    yield _labelled("utilized", parts[0])
    yield _labelled("", " · ".join(parts[1:]))


def _axis(num_cells: int, label_width: int, window_s: float) -> Text:
    left, right = f"{format_seconds(window_s)} ago", "now"
    gap = max(1, num_cells - len(left) - len(right))
    return Text(" " * label_width + left + " " * gap + right, style="dim")


def sparkline(values: Sequence[float]) -> str:
    """One character a value, between the smallest and the largest of them."""
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)


def _bar(fraction: float, width: int, style: str) -> Text:
    """A bar with eighths of characters on a line of its whole length."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text.assemble((bar, style), ("─" * (width - len(bar)), "dim"))
