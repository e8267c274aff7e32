"""Whom the run directory lets in, and that nothing is written through links out of it."""

import os
import stat

import pytest

from swingshift.config.document import to_yaml
from swingshift.config.loading import load_config
from swingshift.config.run_dir import RUN_FILES, RUN_FOLDERS, check_run_dir, prepare_run_dir
from swingshift.errors import ConfigError


def config_for(folder, **trainer):
    config = load_config([], [])
    for key, value in {"default_local_dir": str(folder), **trainer}.items():
        setattr(config.trainer, key, value)
    return config


@pytest.fixture
def folder(tmp_path):
    """A previous run."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text(to_yaml(load_config([], [])))
    (path / "metrics.jsonl").write_text("{}\n")
    (path / "checkpoints").mkdir()
    return path


@pytest.fixture
def elsewhere(tmp_path):
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "precious.txt").write_text("mine")
    return path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_run_directory_is_private(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = prepare_run_dir(config_for(tmp_path / "runs" / "mine"))
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert mode(tmp_path / "runs") == 0o777 & ~umask, "what is above it is nobody's secret"


@pytest.mark.parametrize("has_run", [False, True])
def test_a_directory_that_was_there_keeps_its_permissions(tmp_path, folder, has_run):
    chosen = folder if has_run else tmp_path / "shared"
    chosen.mkdir(exist_ok=True)
    chosen.chmod(0o750)
    prepare_run_dir(config_for(chosen, resume_mode="auto"))
    assert mode(chosen) == 0o750


LINKS = [*RUN_FILES, "config.yaml", *RUN_FOLDERS, "live.json.tmp", "summary.json.tmp", ".init_model.partial"]


@pytest.mark.parametrize("name", LINKS)
def test_going_on_writes_through_no_link_out_of_the_directory(folder, elsewhere, name):
    for existing in (folder / name, elsewhere / name):
        if existing.is_dir():
            existing.rmdir()
    if name == "config.yaml":
        (folder / name).rename(elsewhere / name)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere / name)
    with pytest.raises(ConfigError) as caught:
        prepare_run_dir(config_for(folder, resume_mode="auto"))
    text = str(caught.value)
    assert text.startswith(f"trainer.default_local_dir={folder}: {name} in it is a link to ") and "remove" in text
    with pytest.raises(ConfigError):
        check_run_dir(config_for(folder, resume_mode="auto"))


@pytest.mark.parametrize("name", LINKS)
def test_overwriting_removes_the_link_and_not_what_it_leads_to(folder, elsewhere, name):
    target = elsewhere / "precious.txt" if "." in name else elsewhere
    if name == "config.yaml":
        target = elsewhere / "config.yaml"
        (folder / name).rename(target)
    if (folder / name).is_dir():
        (folder / name).rmdir()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    prepare_run_dir(config_for(folder, overwrite=True))
    assert list(folder.iterdir()) == []
    assert (elsewhere / "precious.txt").read_text() == "mine" and target.exists()


def test_links_within_the_directory_and_links_of_others_are_fine(folder, elsewhere):
    (folder / "checkpoints").rmdir()
    (folder / "disk").mkdir()
    (folder / "checkpoints").symlink_to("disk")
    (folder / "my_notes").symlink_to(elsewhere)
    prepare_run_dir(config_for(folder, resume_mode="auto"))


def test_the_directory_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert prepare_run_dir(config_for(tmp_path / "link", resume_mode="auto")) == tmp_path / "link"
