"""A Ray cluster on loopback for the tests: prints its address, answers each line of stdin with what it holds."""

import json
import logging
import os
import sys

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import ray
from ray.util import placement_group_table


def held() -> dict:
    actors = [a for a in ray._private.state.actors().values() if a["State"] != "DEAD"]
    groups = [g for g in placement_group_table().values() if g["state"] != "REMOVED"]
    free = ray.available_resources().get("CPU", 0)
    return {"num_actors": len(actors), "num_groups": len(groups), "num_free_cpus": free}


ray.init(
    address="local",
    num_cpus=int(sys.argv[1]),
    include_dashboard=False,
    log_to_driver=False,
    logging_level=logging.ERROR,
    _node_ip_address="127.0.0.1",
)
print(ray.get_runtime_context().gcs_address, flush=True)
for _ in sys.stdin:
    print(json.dumps(held()), flush=True)
ray.shutdown(wait_for_processes=True)
