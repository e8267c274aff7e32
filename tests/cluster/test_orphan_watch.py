"""What a control process leaves behind ends with it."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from swingshift.cluster.orphan_watch import MARK, RAY_FOLDER, OrphanWatch

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# Starts a sleeper that ignores the usual signals, says its id, and waits to be killed.
CONTROL = f"""
import subprocess, sys, time
from swingshift.cluster.orphan_watch import OrphanWatch
with OrphanWatch():
    sleeper = subprocess.Popen({SLEEP!r}, start_new_session=True)
    print(sleeper.pid, flush=True)
    time.sleep(600)
"""


OPENER = "import sys, time; file = open(sys.argv[1], sys.argv[2]); time.sleep(600)"
"""Has a file open and, like Ray's agents, no environment."""


def wait_until_gone(process, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, process
        time.sleep(0.02)


def test_leaving_ends_marked_processes_and_no_others():
    before = subprocess.Popen(SLEEP)
    try:
        with OrphanWatch():
            inside = subprocess.Popen(SLEEP, start_new_session=True)
            assert MARK in os.environ
        assert inside.wait(10) != 0
        assert before.poll() is None and MARK not in os.environ
        after = subprocess.Popen(SLEEP)
        with OrphanWatch():
            pass
        assert after.poll() is None
        after.kill()
        after.wait()
    finally:
        before.kill()
        before.wait()


@pytest.mark.parametrize("signal_number", [9, 15])
def test_a_killed_control_process_takes_them_along(signal_number):
    control = subprocess.Popen([sys.executable, "-c", CONTROL], stdout=subprocess.PIPE, text=True)
    sleeper = psutil.Process(int(control.stdout.readline()))
    watch = [p for p in psutil.Process(control.pid).children() if "orphan_watch" in " ".join(p.cmdline())]
    assert len(watch) == 1
    control.send_signal(signal_number)
    control.wait()
    wait_until_gone(sleeper)
    wait_until_gone(watch[0])
    control.stdout.close()


@pytest.mark.parametrize(
    ("folder", "mode", "killed"),
    [
        ("{mark}", "a", True),
        ("{mark}", "r+", True),
        ("{mark}", "r", False),  # somebody who reads the log of his run
        ("{mark}0", "a", False),  # another run's
        ("0{mark}", "a", False),
    ],
)
def test_writers_into_the_ray_folder_end_too_even_without_an_environment(tmp_path, folder, mode, killed):
    with OrphanWatch():
        path = tmp_path / (RAY_FOLDER + folder.format(mark=os.environ[MARK])) / "agent.log"
        path.parent.mkdir()
        path.write_text("")
        own = path.with_name("driver.log").open("a")  # as Ray has it
        opener = subprocess.Popen([sys.executable, "-c", OPENER, str(path), mode], env={})
        deadline = time.monotonic() + 20
        while not any(file.path == str(path) for file in psutil.Process(opener.pid).open_files()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    try:
        if killed:
            assert opener.wait(10) == -9
        else:
            assert opener.poll() is None
    finally:
        own.close()
        opener.kill()
        opener.wait()
