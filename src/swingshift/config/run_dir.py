"""The run directory: checked before anything is written, cleared only of what a run wrote."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import yaml

from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError

CONFIG_FILE = "config.yaml"
RUN_FILES = (
    "metrics.jsonl",
    "samples.jsonl",
    "consumed.jsonl",
    "timeline.jsonl",
    "decisions.jsonl",
    "levels.jsonl",
    "attempts.jsonl",
    "live.json",
    "mlflow.db",
    "prometheus_targets.json",
    "summary.json",
    "run.log",
    "run.png",
)
PROFILE_FOLDER = "profile"
RUN_FOLDERS = ("checkpoints", "init_model", PROFILE_FOLDER, "tensorboard", "wandb")

PRIVATE = 0o700
"""Permissions of a run directory that a run makes."""

_PARTS = (*RUN_FILES, CONFIG_FILE, *RUN_FOLDERS)
_HALF_WRITTEN = (*(f"{name}.tmp" for name in RUN_FILES), *(f".{name}.partial" for name in RUN_FOLDERS))
"""What files and folders are called until they are whole."""
_RUN_SECTIONS = {"actor_rollout_ref", "async_training", "trainer"}
_KEY = "trainer.default_local_dir"


def run_dir_of(config: SwingshiftConfig) -> Path:
    """Raises ConfigError for the home of a user who does not exist."""
    return _expanded(_KEY, config.trainer.default_local_dir)


def _expanded(key: str, path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{key}={path}: there is no such user; correct the path") from None


def profile_dir_of(config: SwingshiftConfig) -> Path:
    """Where ``global_profiler`` writes."""
    chosen = config.global_profiler.save_path
    return run_dir_of(config) / PROFILE_FOLDER if chosen is None else Path(chosen).expanduser()


def check_run_dir(config: SwingshiftConfig) -> None:
    """Raise ConfigError if the run could not use its directory. Writes nothing."""
    folder = run_dir_of(config)
    try:
        _check_resume_path(config, folder)
        _check_writable(folder)
        if folder.is_dir():
            _check_previous_run(config, folder)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _unusable(folder, error) from error


def prepare_run_dir(config: SwingshiftConfig) -> Path:
    """Create the run directory, or clear it with ``trainer.overwrite``, and return it.

    Call it when every other check has passed. Raises ConfigError, naming key and remedies, if it holds a
    previous run that is neither resumed nor overwritten, holds something else, or cannot be written.
    """
    check_run_dir(config)
    folder = run_dir_of(config)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Prompts, answers and weights are in it: nobody else's, unless somebody made it before or opens it.
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # A read-only file system shows only when something is written.
        if config.trainer.overwrite:
            _clear(folder)
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error
    return folder


def looks_like_run(folder: Path) -> bool:
    """True if a run made this folder: it has a run's ``config.yaml``, or nothing but plain files of a run."""
    if (folder / CONFIG_FILE).is_file():
        return _is_run_config(folder / CONFIG_FILE)
    entries = list(folder.iterdir())
    return bool(entries) and all(entry.name in RUN_FILES and entry.is_file() for entry in entries)


def _is_run_config(path: Path) -> bool:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(values, dict) and values.keys() >= _RUN_SECTIONS


def _check_writable(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"{_KEY}={folder}: {existing} is a file, not a directory; choose another directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{_KEY}={folder}: {existing} is not writable; choose another directory")


def _check_previous_run(config: SwingshiftConfig, folder: Path) -> None:
    trainer = config.trainer
    if not any(folder.iterdir()):
        return
    if not looks_like_run(folder):
        raise ConfigError(
            f"{_KEY}={folder}: the directory holds files that no run wrote; choose another or an empty one"
        )
    if trainer.overwrite:
        return
    if trainer.resume_mode == "auto" or _resumes_within(config, folder):
        _check_links(folder)
        return
    raise ConfigError(
        f"{_KEY}={folder}: the directory holds a previous run; set trainer.overwrite=true to replace it or "
        f"trainer.resume_mode=auto to go on with it, or choose another directory"
    )


def _check_links(folder: Path) -> None:
    """A run that goes on writes into what is there, and must not write elsewhere through a link."""
    for name in (*_PARTS, *_HALF_WRITTEN):
        entry = folder / name
        if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"{_KEY}={folder}: {name} in it is a link to {entry.readlink()}, and nothing is written through "
                "links out of the directory; remove the link, or let the directory as a whole be where it leads"
            )


def _check_resume_path(config: SwingshiftConfig, folder: Path) -> None:
    trainer = config.trainer
    if trainer.resume_mode != "resume_path" or trainer.resume_from_path is None:
        return
    if not _expanded("trainer.resume_from_path", trainer.resume_from_path).is_dir():
        raise ConfigError(
            f"trainer.resume_from_path={trainer.resume_from_path}: no such folder; name a checkpoint folder"
        )
    if trainer.overwrite and _resumes_within(config, folder):
        raise ConfigError(
            f"trainer.overwrite=true: would clear {folder}, which holds the checkpoint "
            f"trainer.resume_from_path={trainer.resume_from_path}; leave it out or choose another {_KEY}"
        )


def _resumes_within(config: SwingshiftConfig, folder: Path) -> bool:
    trainer = config.trainer
    if trainer.resume_mode != "resume_path" or trainer.resume_from_path is None:
        return False
    return Path(trainer.resume_from_path).expanduser().resolve().is_relative_to(folder.resolve())


def _clear(folder: Path) -> None:
    """Remove what a run wrote and nothing else; of links the links themselves.

    The mark of a run goes last, so that a clearing that was broken off can be repeated.
    """
    for name in (*_HALF_WRITTEN, *RUN_FOLDERS, *RUN_FILES, CONFIG_FILE):
        entry = folder / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _unusable(folder: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"{_KEY}={str(folder)!r}: cannot be used ({reason}); choose another directory")
