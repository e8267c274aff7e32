"""A run whose standard output cannot show everything trains as any other."""

import pytest
from test_modes import check_files

pytestmark = pytest.mark.ray


def test_an_output_without_the_characters(launch):
    """A decision says ``≈``, the summary ``→``."""
    run = launch(environment={"PYTHONIOENCODING": "ascii"}).expect(0)
    check_files(run, groups=16, devices=["standalone-0", "hybrid-0"], lends=True)
    assert run.stderr == "", run.report()
    assert "Run summary" in run.stdout and "everything is in" in run.stdout and run.stdout.isascii()
