"""How weights should reach a standalone replica on one machine: Ray's object store, or a gloo broadcast.

Times one sync of packed weights from one process to another, alternating between the two routes in one run, and
prints the medians and their ratio for several sizes. Both copy into the receiver's own tensors at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import ray
import torch
import torch.distributed as dist


@ray.remote(num_cpus=1)
class Peer:
    def __init__(self, rank: int, num_bytes: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.weights = torch.zeros(num_bytes, dtype=torch.uint8)

    def join(self, port: int) -> None:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=self.rank, world_size=2)

    def pack(self) -> list:
        buffer = np.empty(self.weights.numel(), dtype=np.uint8)
        torch.from_numpy(buffer).copy_(self.weights)
        return [ray.put(buffer)]

    def write(self, buffer: np.ndarray) -> None:
        self.weights.copy_(torch.from_numpy(buffer))

    def broadcast(self) -> None:
        buffer = self.weights.clone()
        dist.broadcast(buffer, src=0)
        if self.rank == 1:
            self.weights.copy_(buffer)


def by_object_store(peers: list) -> float:
    started = time.perf_counter()
    reference = ray.get(peers[0].pack.remote())[0]
    ray.get(peers[1].write.remote(reference))
    return time.perf_counter() - started


def by_gloo(peers: list) -> float:
    started = time.perf_counter()
    ray.get([p.broadcast.remote() for p in peers])
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.65, 10, 100, 270])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    rows = []
    for index, megabytes in enumerate(args.megabytes):
        peers = [
            Peer.options(runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "lo"}}).remote(r, int(megabytes * 1e6))
            for r in (0, 1)
        ]
        ray.get([p.join.remote(29510 + index) for p in peers])
        by_object_store(peers), by_gloo(peers)
        pairs = [(by_object_store(peers), by_gloo(peers)) for _ in range(args.repeats)]
        store, gloo = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        ratio = statistics.median(b / a for a, b in pairs)
        rows.append(
            {"megabytes": megabytes, "object_store_s": store, "gloo_s": gloo, "gloo_over_object_store": ratio}
        )
        print(
            f"{megabytes:7.2f} MB: object store {store * 1e3:7.1f} ms, gloo {gloo * 1e3:7.1f} ms, ratio {ratio:.2f}"
        )
        for peer in peers:
            ray.kill(peer)
    ray.shutdown()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
