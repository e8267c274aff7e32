"""The report in a real browser: it renders without an error or a request, hovering tells, zooming shows more.

``make browser-test`` runs this in Debian's package ``chromium``. With ``SCREENSHOTS=FOLDER`` in the environment it
leaves pictures for people to look at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from swingshift.observe.line_file import LineFile
from swingshift.observe.report import write_report
from swingshift.observe.spans import STATES
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario

PRESET = "rollout-bound-8"
SHORT = ["workload.num_cycles=12", "async_training.ppo_mini_batch_size=8"]
STATIC = "async_training.use_dynamic_resource_scheduling=false"
EQUAL = ["cluster.trainer_devices=4", "cluster.rollout_devices=4"]
RUNS = {
    "4 + 4, static": [STATIC, *EQUAL],
    "2 + 6, static": [STATIC, "cluster.trainer_devices=2", "cluster.rollout_devices=6"],
    "4 + 4, dynamic": EQUAL,
}
NUM_CHARTS = 8
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, f"none of {', '.join(PROGRAMS)} is installed; on Debian: apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name, overrides in RUNS.items():
        run_scenario(load_scenario(PRESET, [*SHORT, *overrides]), out=root / name)
    write_report([root / name for name in RUNS], root / "report.html")
    return root / "report.html"


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,024 devices with 100 spans each."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    spans = LineFile(folder / "timeline.jsonl", flush_each=False)
    for device in range(1024):
        name = f"standalone-{device}" if device < 512 else f"hybrid-{device - 512}"
        ends = np.cumsum(rng.uniform(0.5, 2.0, 100))
        for i, (start, end) in enumerate(zip([0.0, *ends[:-1]], ends, strict=True)):
            state = STATES[(i + device // 300) % len(STATES)].value
            spans.write({"device": name, "state": state, "start_s": round(start, 6), "end_s": round(end, 6)})
    spans.close()
    rows = LineFile(folder / "metrics.jsonl", flush_each=False)
    for step in range(1, 101):
        rows.write({"step": step, "training/time_s": 1.2 * step, "critic/rewards/mean": 1 - 1 / step})
    rows.close()
    write_report([folder], folder / "report.html")
    return folder / "report.html"


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page; after the test there must have been no error, no warning and no request but for the page."""
    problems: list[str] = []

    def opened(path: Path, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: None if r.url == path.as_uri() else problems.append(f"request of {r.url[:80]}"))
        page.goto(path.as_uri())
        page.wait_for_selector("#lanes .main-svg")
        return page

    yield opened
    for context in browser.contexts:
        context.close()
    assert not problems


def shoot(page: Page, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def window(lanes: Locator) -> list[float]:
    return lanes.evaluate("figure => figure.layout.xaxis.range")


def drag(page: Page, figure: Locator, start: float, end: float) -> None:
    """Over a stretch of the plot, given in shares of its width."""
    box = figure.locator(".draglayer .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=5)
    page.mouse.up()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_renders(comparison: Path, open_page: Open, width: int, scheme: str) -> None:
    page = open_page(comparison, width, scheme)
    figures = page.locator(".figure:visible")
    assert figures.count() == NUM_CHARTS + len(RUNS)
    for i in range(NUM_CHARTS):
        assert figures.nth(i).locator(".scatterlayer .trace").count() >= len(RUNS)
    assert page.locator("#lanes .bars .point").count() > 100 or page.locator("#lanes .hm image").count() == len(RUNS)
    # Nothing sticks out at the side.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    brightness = page.evaluate(
        "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (min(brightness) > 200) if scheme == "light" else (max(brightness) < 60)
    shoot(page, f"report-{width}-{scheme}")


def test_hovering_over_a_curve_names_every_run(comparison: Path, open_page: Open) -> None:
    page = open_page(comparison)
    chart = page.locator("#charts .figure").first
    chart.scroll_into_view_if_needed()
    chart.locator(".nsewdrag").first.hover()
    text = chart.locator(".hoverlayer .legend").text_content() or ""
    assert all(name in text for name in RUNS) and "cycle " in text
    buttons = chart.locator(".modebar-btn").evaluate_all("found => found.map((button) => button.dataset.title)")
    assert "Zoom" in buttons and not any("hare" in title or "loud" in title for title in buttons)


def test_hovering_over_a_lane_tells_what_the_device_did(comparison: Path, open_page: Open) -> None:
    page = open_page(comparison)
    lanes = page.locator("#lanes .figure").nth(2)
    lanes.scroll_into_view_if_needed()
    drag(page, lanes, 0.30, 0.38)
    page.wait_for_function("figures[2].note.textContent === 'Every span.'")
    box = lanes.locator(".draglayer .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 17)
    text = lanes.locator(".hoverlayer .hovertext").first.text_content() or ""
    assert "standalone-" in text or "hybrid-" in text
    assert any(state.value in text for state in STATES) and "from" in text


def test_zooming_shows_all_runs_closer_and_a_double_click_all_again(comparison: Path, open_page: Open) -> None:
    page = open_page(comparison)
    lanes = [page.locator("#lanes .figure").nth(i) for i in range(len(RUNS))]
    lanes[0].scroll_into_view_if_needed()
    before = window(lanes[0])
    drag(page, lanes[0], 0.2, 0.4)
    page.wait_for_function("before => figures[0].figure.layout.xaxis.range[1] < before[1]", arg=before)
    after = window(lanes[0])
    length = before[1] - before[0]
    assert after[0] == pytest.approx(before[0] + 0.2 * length, abs=0.02 * length)
    assert after[1] - after[0] == pytest.approx(0.2 * length, rel=0.1)
    assert all(window(other) == pytest.approx(after) for other in lanes[1:])
    shoot(page, "report-zoomed")
    box = lanes[0].locator(".nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("before => figures[2].figure.layout.xaxis.range[1] >= before[1] * 0.999", arg=before)
    assert window(lanes[0]) == pytest.approx(before)


def test_curves_zoom_and_can_run_over_time(comparison: Path, open_page: Open) -> None:
    page = open_page(comparison)
    chart = page.locator("#charts .figure").first
    chart.scroll_into_view_if_needed()
    drag(page, chart, 0.25, 0.5)
    page.wait_for_function("document.querySelector('#charts .figure').layout.xaxis.range[1] < 8")
    page.check("input[name=axis][value=time]")
    title = "document.querySelector('#charts .figure').layout.xaxis.title.text"
    assert page.evaluate(title).startswith("time (")
    # Another axis starts over.
    assert page.evaluate("document.querySelector('#charts .figure').layout.xaxis.autorange") is True


def test_a_run_can_be_taken_out(comparison: Path, open_page: Open) -> None:
    page = open_page(comparison)
    traces = "document.querySelector('#charts .figure').data.length"
    assert page.evaluate(traces) == len(RUNS)
    page.uncheck("#runs input >> nth=1")
    assert page.evaluate(traces) == len(RUNS) - 1
    assert page.locator("#lanes .card:visible").count() == len(RUNS) - 1


def test_colours_follow_the_system(comparison: Path, open_page: Open) -> None:
    page = open_page(comparison, scheme="light")
    ink = "document.querySelector('#lanes .figure').layout.font.color"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => {ink} !== light", arg=light)


def test_a_thousand_devices(large: Path, open_page: Open) -> None:
    assert large.stat().st_size < 15_000_000
    page = open_page(large)
    note = page.locator("#lanes .state")
    assert "mean over the devices of a kind" in note.inner_text()
    shoot(page, "report-1024-kinds")
    page.check("input[name=view][value=each]")
    assert "The state with the largest share" in note.inner_text()
    lanes = page.locator("#lanes .figure")
    shoot(page, "report-1024-each")
    lanes.scroll_into_view_if_needed()
    # A box over few devices and little time: single spans appear.
    box = lanes.locator(".draglayer .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.30 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.36 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_function("figures[0].note.textContent === 'Every span.'")
    assert page.locator("#lanes .bars .point").count() > 50
    shoot(page, "report-1024-zoomed")


def test_runs_of_which_only_shares_fit(comparison: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swingshift.observe.report.MAX_BYTES", 3 * 8 * 5 * 30)
    page_path = comparison.with_name("shares.html")
    write_report([comparison.with_name(name) for name in RUNS], page_path)
    page = open_page(page_path)
    notes = page.locator("#lanes .state")
    assert all("no single spans" in note for note in notes.all_inner_texts())
    assert page.locator("#left-out li").count() == len(RUNS)
    before = notes.first.inner_text()
    lanes = page.locator("#lanes .figure").first
    lanes.scroll_into_view_if_needed()
    drag(page, lanes, 0.5, 0.6)
    page.wait_for_function("figures[0].figure.layout.xaxis.range[0] > 1")
    # No closer than the page has it.
    assert notes.first.inner_text() == before
    box = lanes.locator(".draglayer .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 17)
    assert "rollout 100.0%" in (lanes.locator(".hoverlayer .hovertext").first.text_content() or "")
    shoot(page, "report-shares")


def test_on_a_phone_swiping_scrolls_and_buttons_zoom(comparison: Path, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800}, is_mobile=True, has_touch=True)
    page = context.new_page()
    page.goto(comparison.as_uri())
    page.wait_for_selector("#lanes .main-svg")
    lanes = page.locator("#lanes .figure").first
    assert lanes.evaluate("figure => figure.layout.dragmode") is False
    before = window(lanes)
    lanes.locator(".modebar-btn[data-title='Zoom in']").click()
    page.wait_for_function("before => figures[1].figure.layout.xaxis.range[1] < before[1]", arg=before)
    context.close()
