"""Where the trainer's ranks meet: on the node's own address and nowhere else, loopback where Ray is on loopback."""

from __future__ import annotations

import ipaddress
import os
import socket

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

_LOOPBACK_NAMES = ("lo", "lo0")


def free_address(host: str) -> str:
    """For rank 0: ``host`` with a port that is free now, as all ranks' ``address`` of ``join``."""
    with _listener(host, 0) as probe:
        port = probe.getsockname()[1]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def join(address: str, backend: str, rank: int, world_size: int) -> None:
    """Make this process one of the ranks. Returns once all are there."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    _stay_on_loopback(host)
    store = _serve(host, int(port), world_size) if rank == 0 else TCPStore(host, int(port), world_size, False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def _serve(host: str, port: int, world_size: int) -> TCPStore:
    """torch's own server would listen on every address of the machine, so it is given a socket that does not."""
    listener = _listener(host, port)
    listener.listen(world_size)
    # The store closes it.
    return TCPStore(host, port, world_size, True, wait_for_workers=False, master_listen_fd=listener.detach())


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def _stay_on_loopback(host: str) -> None:
    """gloo and NCCL choose an interface of their own; where everybody is on this machine it has to be loopback."""
    names = [name for _, name in socket.if_nameindex() if name in _LOOPBACK_NAMES]
    if names and ipaddress.ip_address(host).is_loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
        os.environ.setdefault("NCCL_SOCKET_IFNAME", names[0])
