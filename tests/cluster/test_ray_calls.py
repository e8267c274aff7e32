"""Calls to real Ray actors: which errors come out, on a cluster of our own."""

import asyncio
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from swingshift.cluster import placement
from swingshift.cluster.calls import answer
from swingshift.cluster.ray_cluster import RayCluster, check_capacity
from swingshift.config.schema import RolloutConfig, SwingshiftConfig, TrainerConfig
from swingshift.errors import ConfigError, ReplicaDiedError, TrainerError


def remote_class():
    # Made here, so that it travels to the workers, which cannot import the tests.
    class Remote:
        def __init__(self, error=None):
            if error is not None:
                raise error

        def put(self):
            return [ray.put(np.zeros(200_000, dtype=np.uint8))]

        def size(self, array):
            return len(array)

        def fail(self, error):
            raise error

        def wait(self):
            time.sleep(600)

    return ray.remote(Remote)


def sized(num_trainer, num_rollout, num_nodes=1):
    trainer = TrainerConfig(n_gpus_per_node=num_trainer)
    return SwingshiftConfig(trainer=trainer, rollout=RolloutConfig(n_gpus_per_node=num_rollout, nnodes=num_nodes))


async def outcome(call):
    try:
        return await call
    except Exception as error:
        return error


def living_children():
    return {p.pid: p.name() for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


async def scenario():
    before = living_children()
    cluster = RayCluster(sized(1, 1), "cpu")
    found = {}
    try:
        await cluster.start()
        await cluster.start()
        owner, reader = (remote_class().remote() for _ in range(2))
        [kept] = await answer(owner.put.remote(), "owner")
        found["size"] = await answer(reader.size.remote(kept), "reader")
        found["own"] = await outcome(answer(reader.fail.remote(ConfigError("a.b=1: is bad")), "reader"))
        found["foreign"] = await outcome(answer(reader.fail.remote(KeyError("x")), "reader"))
        waiting = asyncio.ensure_future(outcome(answer(owner.wait.remote(), "owner")))
        await asyncio.sleep(0.1)
        ray.kill(owner)
        found["died"] = await waiting
        found["dead"] = await outcome(answer(owner.size.remote([]), "owner"))
        unborn = remote_class().remote(OSError("no such device"))
        found["unborn"] = await outcome(answer(unborn.size.remote([]), "unborn"))
        # The reader notices the owner's death after a moment.
        while isinstance(lost := await outcome(answer(reader.size.remote(kept), "reader")), int):
            continue
        found["lost"] = lost
        for config in (sized(1, 1), sized(2, 1), sized(1, 1, num_nodes=2)):
            try:
                found[str(config)] = check_capacity(config, "cpu")
            except ConfigError as error:
                found[str(config)] = error
        first = await placement.place_trainer(sized(2, 1), "cpu", "first")
        found["no room"] = await outcome(placement.place_standalone(sized(2, 1), "cpu", "second"))
        first.kill()
        second = await placement.place_standalone(sized(2, 1), "cpu", "second")
        found["names"] = first.names, second.names
        second.kill()
        cluster.keep_logs = False
        found["folder"] = ray._private.worker.global_worker.node.get_session_dir_path()
    finally:
        await cluster.stop()
        await cluster.stop()
    found["left"] = {pid: name for pid, name in living_children().items() if pid not in before}
    return found


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(placement, "PATIENCE_S", 0.2)
        patch.setattr(placement, "PLACEMENT_TIMEOUT_S", 2.0)
        yield asyncio.run(scenario())


@pytest.mark.ray
def test_results_and_errors_come_back_as_themselves(found):
    assert found["size"] == 200_000
    own, foreign = found["own"], found["foreign"]
    assert type(own) is ConfigError and str(own) == "a.b=1: is bad"
    assert "in fail" in own.__notes__[0], "the remote traceback is kept"
    assert isinstance(foreign, KeyError)


@pytest.mark.ray
def test_a_dead_process_is_named(found):
    for error in (found["died"], found["dead"]):
        assert type(error) is ReplicaDiedError and "owner" in str(error) and "\n" not in str(error)


@pytest.mark.ray
def test_a_process_that_could_not_start_says_why(found):
    assert str(found["unborn"]) == "the process of unborn is gone (it could not start: OSError: no such device)"


@pytest.mark.ray
def test_lost_weights_are_the_trainers_fault(found):
    assert type(found["lost"]) is TrainerError and "reader" in str(found["lost"])


@pytest.mark.ray
def test_capacity(found):
    assert found[str(sized(1, 1))] is None
    assert "= 3: the cluster has 2 devices" in str(found[str(sized(2, 1))])
    two_nodes = str(found[str(sized(1, 1, num_nodes=2))])
    assert "rollout" in two_nodes and "ask for less" in two_nodes


@pytest.mark.ray
def test_placement_waits_a_while_for_others(found):
    error = found["no room"]
    assert type(error) is ConfigError and "rollout.nnodes" in str(error) and "(0 are now)" in str(error)
    assert found["names"] == (("hybrid-0", "hybrid-1"), ("standalone-0",))


@pytest.mark.ray
def test_stop_leaves_no_process_and_no_folder(found):
    assert found["left"] == {} and not Path(found["folder"]).exists()
