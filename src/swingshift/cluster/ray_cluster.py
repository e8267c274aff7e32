"""The Ray cluster of a run: the one RAY_ADDRESS names, or one of its own on loopback for as long as the run lasts."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import ray

from swingshift.cluster.orphan_watch import MARK, RAY_FOLDER
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError, TrainerError

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
# Device processes and Ray's own inherit these. A device computes with one thread.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",  # else Ray tells its makers about the run
}


class RayCluster:
    """``start`` connects; ``stop`` disconnects and ends a cluster of our own. A shared one is left as it was.

    Both run in a thread, since they take seconds: Ray's servers end with the thread that started them, and the event
    loop's own threads live as long as the loop.
    """

    def __init__(self, config: SwingshiftConfig, device_kind: str) -> None:
        self._config = config
        self._device_kind = device_kind
        address = os.environ.get("RAY_ADDRESS", "local")
        self._address = address or "local"
        self._starting: asyncio.Future[None] | None = None
        self._own_folder: Path | None = None
        self.keep_logs = True
        """Whether the logs of a cluster of our own stay; they tell why a device process died."""

    @property
    def is_shared(self) -> bool:
        return self._address != "local"

    async def start(self) -> None:
        """Connect once, however often it is called. Raises ConfigError if the devices asked for are not there."""
        if self._starting is not None:
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        connect = self._join if self.is_shared else self._start_own
        self._starting = asyncio.ensure_future(asyncio.to_thread(connect))
        await asyncio.shield(self._starting)
        check_capacity(self._config, self._device_kind)

    async def stop(self) -> None:
        """Also after a start that failed or was cancelled. May be called twice."""
        if self._starting is None:
            return
        await asyncio.wait([self._starting])
        self._starting.exception()  # whoever called start has seen it
        await asyncio.to_thread(ray.shutdown, wait_for_processes=True)
        self._starting = None
        if self._own_folder is None:
            logger.info("disconnected from Ray")
        elif self.keep_logs:
            logger.info("the local Ray cluster is shut down; its logs are in %s", self._own_folder)
        else:
            logger.info("the local Ray cluster is shut down")
            await asyncio.to_thread(shutil.rmtree, self._own_folder, ignore_errors=True)

    def _start_own(self) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Its own folder, so that nobody who looks for a cluster on this machine finds ours. Paths of sockets must be
        # short, which those of other temporary folders are not everywhere.
        home = Path("/tmp" if os.name == "posix" else tempfile.gettempdir())
        folder = home / (RAY_FOLDER + (os.environ.get(MARK) or secrets.token_hex(4)))
        # Whoever may talk to Ray may run code: a token of this run's own, and one that lies in no file.
        if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # A device on a machine without GPUs is one CPU as Ray counts them.
        num_devices = self._config.trainer.num_devices + self._config.rollout.num_devices
        try:
            folder.mkdir(mode=0o700)  # an error if it is there already
            self._own_folder = folder
            ray.init(
                address="local",
                num_cpus=num_devices if self._device_kind == "cpu" else None,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                # A folder inside, because Ray opens its own to everybody.
                _temp_dir=str(folder / "r"),
                **_QUIET,
            )
        except (RuntimeError, OSError, ray.exceptions.RayError) as error:
            raise TrainerError(f"Ray could not be started: {' '.join(str(error).split())}") from error

    def _join(self) -> None:
        _check_address(self._address)
        try:
            ray.init(address=self._address, **_QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            if "AuthenticationError" in repr(error.__cause__):
                raise ConfigError(
                    f"RAY_ADDRESS={self._address}: the cluster wants a token; set RAY_AUTH_MODE=token and, unless it "
                    "is in ~/.ray/auth_token, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
                ) from error
            raise _unreachable(self._address, " ".join(str(error).split())) from error


def check_capacity(config: SwingshiftConfig, device_kind: str) -> None:
    """Raise ConfigError if the cluster could not place the devices even if nobody else used it."""
    resource = "GPU" if device_kind == "cuda" else "CPU"
    have = sorted((int(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"]), reverse=True)
    trainer, rollout = config.trainer, config.rollout
    wanted = trainer.num_devices + rollout.num_devices
    if sum(have) < wanted:
        raise ConfigError(
            f"trainer.nnodes × trainer.n_gpus_per_node + rollout.nnodes × rollout.n_gpus_per_node = {wanted}: "
            f"the cluster has {sum(have)} devices ({resource}s of its nodes: {have}); ask for less or add nodes"
        )
    for section, name in ((trainer, "trainer"), (rollout, "rollout")):
        fitting = sum(count >= section.n_gpus_per_node for count in have)
        if fitting < section.nnodes:
            raise ConfigError(
                f"{name}.nnodes={section.nnodes}: the cluster has {fitting} nodes with {name}.n_gpus_per_node="
                f"{section.n_gpus_per_node} {resource}s or more ({resource}s of its nodes: {have}); ask for less"
            )


def _check_address(address: str) -> None:
    """Does anybody answer at host:port? Ray itself would try for minutes."""
    at = str(ray._private.utils.read_ray_address() or "") if address == "auto" else address
    if not at:
        raise _unreachable(address, "none runs on this machine")
    host, _, port = at.rpartition(":")
    if "://" in at or not host or not port.isdigit():
        raise ConfigError(f"RAY_ADDRESS={address}: give host:port of a cluster's head node, or unset it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"RAY_ADDRESS={address}: no Ray cluster answers there ({reason}); correct it, or unset it to start Ray here"
    )
