"""Imports point inward: core ← schedule ← runtime ← everything else ← cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import swingshift

ROOT = Path(swingshift.__file__).parent

# What each ring may import besides itself. cluster and cli put everything together.
LEAVES = {"engines", "training", "sim", "observe", "tasks"}
ALLOWED = {
    "errors": set(),
    "user_code": {"errors"},
    "core": {"errors"},
    "schedule": {"core", "errors", "user_code"},
    "runtime": {"core", "schedule", "errors"},
    "config": {"core", "schedule", "errors"},
    "engines": {"core", "runtime", "config", "errors"},
    "training": {"core", "runtime", "config", "tasks", "errors"},
    "tasks": {"core", "runtime", "config", "errors", "user_code"},
    "sim": {"core", "schedule", "runtime", "config", "observe", "errors"},
    "observe": {"core", "schedule", "runtime", "config", "errors"},
    "cluster": {"core", "schedule", "runtime", "config", "errors", "user_code", *LEAVES},
    "cli": {"core", "schedule", "runtime", "config", "errors", "cluster", *LEAVES},
    "__main__": {"cli"},
    "__init__": set(),
}

# Imports every module of the rings named on the command line and prints what came with them.
LOADER = """
import importlib, pkgutil, sys
before = set(sys.modules)
for ring in sys.argv[1:]:
    package = importlib.import_module(f"swingshift.{ring}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def modules_after_importing(*rings: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", LOADER, *rings], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_core_and_schedule_need_only_the_standard_library() -> None:
    loaded = modules_after_importing("core", "schedule")
    assert "swingshift.core.routing" in loaded and "swingshift.schedule.default" in loaded
    allowed = ("swingshift.core", "swingshift.schedule")
    single = ("swingshift", "swingshift.errors", "swingshift.user_code")
    ours = {m for m in loaded if m.partition(".")[0] == "swingshift"}
    assert all(m in single or m.startswith(allowed) for m in ours), ours
    foreign = {m.partition(".")[0] for m in loaded} - set(sys.stdlib_module_names) - {"swingshift"}
    assert not foreign


def test_core_decides_without_a_loop_or_a_clock() -> None:
    loaded = modules_after_importing("core")
    assert not loaded & {"asyncio", "logging", "socket"}


@pytest.mark.parametrize("ring", ["runtime", "sim", "observe"])
def test_ring_needs_neither_ray_nor_torch(ring: str) -> None:
    loaded = modules_after_importing(ring)
    assert f"swingshift.{ring}" in loaded
    heavy = {m for m in loaded if m.partition(".")[0] in ("ray", "torch", "transformers")}
    assert not heavy


def imports() -> Iterator[tuple[Path, str, str]]:
    """File, its ring and what it imports, function-level imports included."""
    for path in sorted(ROOT.rglob("*.py")):
        ring = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for name in node.names:
                    yield path, ring, name.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute here"
                assert node.module is not None
                if node.module == "swingshift":
                    for name in node.names:
                        yield path, ring, f"swingshift.{name.name}"
                else:
                    yield path, ring, node.module


def test_imports_point_inward() -> None:
    wrong = []
    for path, ring, name in imports():
        parts = name.split(".")
        if parts[0] != "swingshift" or len(parts) == 1:
            continue
        if parts[1] not in ALLOWED[ring] | {ring, "__version__"}:
            wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_only_cluster_imports_ray() -> None:
    wrong = [
        f"{p.relative_to(ROOT)}" for p, ring, name in imports() if name.split(".")[0] == "ray" and ring != "cluster"
    ]
    assert not wrong, wrong
