"""What a run shows must not end it."""

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
from swingshift.cluster.run_files import RunFiles
from swingshift.config.schema import SwingshiftConfig

files = RunFiles(Path(sys.argv[1]), SwingshiftConfig(), str, None)
sys.stdin.read()
for _ in range(3):
    files.note("x" * 100_000)
summary = files.close({}, 1.0, "finished")
print(summary["exit_reason"], file=sys.stderr)
"""


def test_a_reader_that_goes_away_does_not_end_training(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.stdout.close()
    run.stdin.close()
    assert run.stderr.read() == "finished\n"
    run.stderr.close()
    assert run.wait(10) == 0
    assert (tmp_path / "summary.json").is_file() and not (tmp_path / "run.png").exists()
