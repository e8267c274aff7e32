"""The documentation says what is: links, files, keys, commands and programs in it are real."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swingshift.cli import main
from swingshift.config.keys import all_keys
from swingshift.config.loading import load_config
from swingshift.core.metric_table import METRICS, STEP_METRICS
from swingshift.schedule import base
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = tuple(path for path, key in all_keys().items() if key.is_section and "." not in path)
SUFFIXES = (".py", ".md", ".yaml", ".jsonl", ".png", ".toml")
MADE_BY_RUNS = {
    "metrics.jsonl",
    "samples.jsonl",
    "consumed.jsonl",
    "timeline.jsonl",
    "decisions.jsonl",
    "levels.jsonl",
    "attempts.jsonl",
    "config.yaml",
    "run.png",
    "compare.png",
}
"""Names of files in a run directory, which no repository holds."""
EXAMPLES = {"train.jsonl", "train.json", "train.parquet", "my.yaml", "my_policy.py", "file.py", "test_*.py"}


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def code_spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def test_the_pages_are_there():
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "AGENTS.md", "CHANGELOG.md", "docs/architecture.md", "docs/policies.md"} <= names
    assert len([name for name in names if name.startswith("docs/decisions/0")]) >= 9


@pytest.mark.parametrize("page", named(PAGES))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), f"{target}: no such file"
        assert linked.is_relative_to(ROOT), f"{target}: outside of the repository"
        if anchor:
            assert anchor in anchors(linked), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, punctuation dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", named(PAGES))
def test_files_named_in_code_exist(page: Path):
    for span in code_spans(page):
        if not span.endswith(SUFFIXES) or span in SUFFIXES or any(c in span for c in " =<*:"):
            continue
        if span in MADE_BY_RUNS | EXAMPLES:
            continue
        places = [ROOT / span, page.parent / span, ROOT / "src" / "swingshift" / span]
        assert any(place.exists() for place in places), f"`{span}`: no such file"


@pytest.mark.parametrize("page", named(PAGES))
def test_configuration_keys_exist(page: Path):
    for span in code_spans(page):
        key = span.partition("=")[0]
        if re.fullmatch(rf"({'|'.join(SECTIONS)})(\.\w+)+", key) and not span.endswith(SUFFIXES):
            assert key in all_keys(), f"`{span}`: no such key"


@pytest.mark.parametrize("page", named(PAGES))
def test_metric_names_exist(page: Path):
    defined = METRICS.keys() | STEP_METRICS.keys()
    prefixes = {name.partition("/")[0] for name in defined} - {"training"}
    for span in code_spans(page):
        if re.fullmatch(rf"({'|'.join(prefixes)})(/\w+)+", span):
            assert span in defined, f"`{span}`: no such metric"


@pytest.mark.parametrize("page", named(PAGES))
def test_make_targets_exist(page: Path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for target in re.findall(r"\bmake ([a-z-]+)`", page.read_text(encoding="utf-8")):
        assert target in targets, f"make {target}"
    for text in blocks(page, ""):
        for target in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE):
            assert target in targets, f"make {target}"


# --- commands and programs ----------------------------------------------------------------------------------


def commands(page: Path) -> list[list[str]]:
    """Every ``swingshift`` command of a page, as words: fenced ones whole, and those in code spans."""
    lines = []
    for text in [*blocks(page, ""), *blocks(page, "bash")]:
        lines += text.replace("\\\n", " ").splitlines()
    lines += [span for span in code_spans(page) if "|show|" not in span]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True) if re.match(r"(\.venv/bin/)?swingshift ", line) else []
        if words:
            found.append(words[1 : words.index(">") if ">" in words else None])
    return found


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the repository's files and what the pages tell the reader to write."""
    for name in ("configs", "examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    for page in PAGES:
        for text in [*blocks(page, "python"), *blocks(page, "yaml")]:
            name = re.match(r"# (\w+\.\w+)\n", text)
            if name:
                (tmp_path / name[1]).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # Policies of the pages must not stay registered for other tests.
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    yield tmp_path
    sys.modules.pop("my_policy", None)


ALL_COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


def test_the_pages_show_commands():
    assert len(ALL_COMMANDS) >= 10
    assert {words[0] for _, words in ALL_COMMANDS} >= {"train", "config", "policies"}


def make_runs(argv: list[str]) -> None:
    """The folders that a command reads, each with a short simulated run."""
    short = ["workload.num_cycles=1", "async_training.ppo_mini_batch_size=2"]
    for word in argv:
        if word.startswith("runs/"):
            run_scenario(load_scenario("rollout-bound-8", short), out=Path(word))


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{p.name}: {' '.join(words)[:60]}") for p, words in ALL_COMMANDS]
)
def test_commands_work(words: list[str], workplace: Path, capsys: pytest.CaptureFixture[str]):
    """``train`` only as far as its plan."""
    argv = list(words)
    if argv[0] in ("report", "trace", "top"):
        make_runs(argv)
    if argv[0] == "train":
        argv += ["--dry-run"]
        argv += [] if any(word.startswith("trainer.device=") for word in argv) else ["trainer.device=cpu"]
    assert main(argv) == 0, capsys.readouterr().err
    assert "error" not in capsys.readouterr().err


def test_yaml_of_the_pages_is_valid(workplace: Path):
    found = [text for page in PAGES for text in blocks(page, "yaml")]
    assert len(found) >= 2
    for text in found:
        (workplace / "block.yaml").write_text(text, encoding="utf-8")
        load_config([workplace / "block.yaml"], [])


def test_the_policy_walk_through_runs_and_prints_what_the_page_says(workplace: Path):
    page = ROOT / "docs" / "policies.md"
    program = next(text for text in blocks(page, "python") if "simulate(" in text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(page), "exec"), {"__name__": "program"})
    assert printed.getvalue() == blocks(page, "text")[0]


# --- the README ---------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_has_its_parts():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    assert text.count("<!-- compare-demo -->") == text.count("<!-- /compare-demo -->") == 1
    assert (ROOT / "docs" / "images" / "demo.png").stat().st_size < 200_000
