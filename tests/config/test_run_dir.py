"""The run directory: nothing is written before every check passed, nothing foreign is removed."""

import errno
import os
import tempfile

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


def previous_run(folder):
    folder.mkdir(parents=True)
    for name in RUN_FILES:
        (folder / name).write_text("{}")
    for name in RUN_FOLDERS:
        (folder / name / "step_1").mkdir(parents=True)
        (folder / name / "step_1" / "model.safetensors").write_text("weights")
    (folder / "config.yaml").write_text(to_yaml(load_config([], [])))
    return folder


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refusal(config):
    with pytest.raises(ConfigError) as caught:
        prepare_run_dir(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_directory_is_created_by_prepare_only(tmp_path):
    folder = tmp_path / "a" / "b"
    check_run_dir(config_for(folder))
    assert not (tmp_path / "a").exists()
    assert prepare_run_dir(config_for(folder)) == folder
    assert folder.is_dir() and tree(folder) == []
    assert prepare_run_dir(config_for(folder)) == folder, "an empty one is as good as a new one"


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepare_run_dir(config_for("~/runs/x")) == tmp_path / "runs" / "x"


def test_a_previous_run_is_not_touched(tmp_path):
    folder = previous_run(tmp_path / "run")
    before = tree(folder)
    message = refusal(config_for(folder))
    for words in ("trainer.default_local_dir=", "trainer.overwrite=true", "trainer.resume_mode=auto", "another"):
        assert words in message
    assert tree(folder) == before


def test_resuming_goes_on_in_the_directory(tmp_path):
    folder = previous_run(tmp_path / "run")
    before = tree(folder)
    inside = str(folder / "checkpoints" / "step_1")
    assert prepare_run_dir(config_for(folder, resume_mode="auto")) == folder
    assert prepare_run_dir(config_for(folder, resume_mode="resume_path", resume_from_path=inside)) == folder
    assert tree(folder) == before


def test_resuming_from_elsewhere_needs_a_directory_of_its_own(tmp_path):
    old, new = previous_run(tmp_path / "old"), previous_run(tmp_path / "new")
    resume = {"resume_mode": "resume_path", "resume_from_path": str(old / "checkpoints" / "step_1")}
    assert "previous run" in refusal(config_for(new, **resume))
    assert prepare_run_dir(config_for(tmp_path / "fresh", **resume)) == tmp_path / "fresh"


def test_a_checkpoint_to_resume_from_must_exist_and_survive(tmp_path):
    folder = previous_run(tmp_path / "run")
    gone = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "gone")}
    assert "trainer.resume_from_path=" in refusal(config_for(tmp_path / "new", **gone))
    own = {"resume_mode": "resume_path", "resume_from_path": str(folder / "checkpoints" / "step_1")}
    assert "trainer.overwrite=true" in refusal(config_for(folder, overwrite=True, **own))
    assert (folder / "checkpoints" / "step_1").is_dir()
    assert not (tmp_path / "new").exists()


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(tmp_path):
    folder = previous_run(tmp_path / "run")
    (folder / "notes.txt").write_text("mine")
    (folder / "plots").mkdir()
    assert prepare_run_dir(config_for(folder, overwrite=True)) == folder
    assert tree(folder) == ["notes.txt", "plots"]


def test_overwrite_does_not_follow_links(tmp_path):
    folder, elsewhere = previous_run(tmp_path / "run"), previous_run(tmp_path / "elsewhere")
    link = folder / "init_model" / "step_1" / "linked"
    link.symlink_to(elsewhere)
    for path in (folder / "checkpoints" / "step_1").iterdir():
        path.unlink()
    (folder / "checkpoints" / "step_1").rmdir()
    (folder / "checkpoints").rmdir()
    (folder / "checkpoints").symlink_to(elsewhere / "checkpoints")
    before = tree(elsewhere)
    prepare_run_dir(config_for(folder, overwrite=True))
    assert tree(folder) == [] and tree(elsewhere) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/model.bin", "config.yaml", "init_model/x"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, name, overwrite):
    path = tmp_path / "project" / name
    path.parent.mkdir(parents=True)
    path.write_text("name: somebody else's\n")
    message = refusal(config_for(tmp_path / "project", overwrite=overwrite))
    assert "trainer.default_local_dir=" in message and "no run wrote" in message
    assert path.read_text() == "name: somebody else's\n"


def test_a_foreign_config_that_is_not_even_yaml_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_bytes(b"\xff[")
    assert "no run wrote" in refusal(config_for(tmp_path, overwrite=True))


def test_a_run_that_ended_before_it_wrote_its_config_can_be_overwritten(tmp_path):
    (tmp_path / "run.log").write_text("")
    prepare_run_dir(config_for(tmp_path, overwrite=True))
    assert tree(tmp_path) == []


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        message = refusal(config_for(folder))
        assert "trainer.default_local_dir=" in message and "another directory" in message
    assert tree(tmp_path) == ["file"]


@pytest.mark.parametrize("folder", ["/proc/swingshift/run", "x" * 300, "a\0b", "/dev/null/x"])
def test_directories_that_cannot_be_made(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal(config_for(folder))
    assert "trainer.default_local_dir=" in message and "another directory" in message


def test_a_read_only_file_system_shows_before_anything_is_removed(tmp_path, monkeypatch):
    folder = previous_run(tmp_path / "run")
    before = tree(folder)

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert "Read-only" in refusal(config_for(folder, overwrite=True))
    assert tree(folder) == before
