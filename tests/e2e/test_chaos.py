"""The short form of ``make chaos``: one run through kills of each of its processes, resumed, its books exact."""

from __future__ import annotations

import signal

import pytest
from campaign import Campaign


@pytest.mark.ray
def test_a_run_survives_the_death_of_each_of_its_processes(launch):
    campaign = Campaign(lambda overrides: launch("async_training.health_check_interval_s=1", *overrides))
    campaign.more_cycles(2)
    campaign.standalone_gets(signal.SIGKILL)
    campaign.more_cycles(2)
    campaign.trainer_dies()

    campaign.goes_on()
    campaign.more_cycles(3)
    campaign.control_dies()

    campaign.finishes(num_batches=4, batch=2)
