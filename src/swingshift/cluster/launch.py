"""``swingshift train``: from a checked configuration to a finished run, leaving no process behind.

Bad data, broken reward functions and a cluster that is too small are found before anything is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from swingshift.cluster.calls import answer
from swingshift.cluster.inputs import Inputs, read_inputs
from swingshift.cluster.interrupts import EXIT_INTERRUPTED, Interrupts
from swingshift.cluster.memory import check_memory
from swingshift.cluster.orphan_watch import OrphanWatch
from swingshift.cluster.placement import Pool, place_standalone, place_trainer
from swingshift.cluster.ray_cluster import RayCluster
from swingshift.cluster.replicas import RayStarter
from swingshift.cluster.run_files import LOG_FILE, RunFiles
from swingshift.cluster.step_wiring import step_mode
from swingshift.cluster.wiring import compose
from swingshift.config.document import to_yaml
from swingshift.config.plan import count_cycles, resolve_device_kind
from swingshift.config.run_dir import CONFIG_FILE, prepare_run_dir, run_dir_of
from swingshift.config.schema import SwingshiftConfig
from swingshift.config.secrets import MaskingFormatter, Secrets
from swingshift.errors import CheckpointError, TrainerError
from swingshift.observe.live_run import check_exporter
from swingshift.runtime.checkpoint import list_checkpoints, read_state
from swingshift.runtime.session import Session
from swingshift.training.warm_start import WarmStart

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0
INTERRUPTED = "interrupted"


def run_training(config: SwingshiftConfig, config_sources: str) -> int:
    """Train. Returns the exit code: 0 when finished, 130 when interrupted in order; errors are raised.

    Raises KeyboardInterrupt when interrupted before there was anything to save, or twice.
    """
    try:
        return asyncio.run(_run(config, config_sources))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run(config: SwingshiftConfig, config_sources: str) -> int:
    with Interrupts() as interrupts, OrphanWatch():
        inputs = read_inputs(config)
        check_exporter(config)
        if config.trainer.v1.in_steps:
            step_mode(config)  # a replay buffer of the user's own that cannot be used shows at once
        device_kind = resolve_device_kind(config)
        cluster = RayCluster(config, device_kind)
        try:
            memory = check_memory(config, device_kind, is_shared=cluster.is_shared)
            resume_from = _checkpoint_to_resume(config, run_dir_of(config))
            if resume_from is not None:
                read_state(resume_from)  # a damaged one shows at once, before anything is written
            await inputs.reward.check(inputs.prompts[0])
            if cluster.is_shared:
                await _connect(cluster, interrupts)  # before anything is written: is it large enough?
            folder = prepare_run_dir(config)
            (folder / CONFIG_FILE).write_text(to_yaml(config), encoding="utf-8")
            with _log_to(folder / LOG_FILE, Secrets.of(config.model_dump())):
                logger.info("configuration: %s", config_sources)
                logger.info("%s", memory)
                try:
                    code = await _train(config, inputs, folder, resume_from, cluster, device_kind, interrupts)
                    cluster.keep_logs = False
                    return code
                except asyncio.CancelledError:
                    cluster.keep_logs = False
                    raise
                finally:
                    await cluster.stop()
        finally:
            await cluster.stop()
            await inputs.reward.close()


async def _train(
    config: SwingshiftConfig,
    inputs: Inputs,
    folder: Path,
    resume_from: Path | None,
    cluster: RayCluster,
    device_kind: str,
    interrupts: Interrupts,
) -> int:
    num_cycles = count_cycles(config, len(inputs.prompts))
    files = RunFiles(folder, config, lambda ids: str(inputs.tokenizer.decode(list(ids))), num_cycles)
    files.start()
    session: Session | None = None
    started, exit_reason = time.monotonic(), "failed to start"
    try:
        devices = _devices(config, device_kind, files, folder, cluster, interrupts)
        async with devices as (trainer_pool, standalone_pool, model_path):
            starter = RayStarter(standalone_pool, model_path)
            session, store = compose(config, inputs, files, folder, trainer_pool, standalone_pool, starter)
            if resume_from is not None:
                files.note(f"resuming from {resume_from}")
                _go_on(session, await store.load(resume_from), resume_from)
                await store.set_aside_after(resume_from)
            files.go_on(session.rollouter.ledger.num_consumed, session.train_loop.version)
            interrupts.stop = lambda: _stop(session, files)
            exit_reason = await session.run()
            interrupts.stop = None
    except asyncio.CancelledError:
        exit_reason = INTERRUPTED
        raise
    except BaseException as error:
        exit_reason = Secrets.of(config.model_dump()).mask_text(f"{type(error).__name__}: {error}")
        # Only for the run's log: the command line says what happened in its own way.
        logger.info("the run ends with an error", exc_info=True)
        raise
    finally:
        if session is None:
            files.close({}, time.monotonic() - started, exit_reason)
        else:
            files.closing(session)
            files.close(session.timeline.totals(session.now()), session.now(), exit_reason)
    return EXIT_INTERRUPTED if exit_reason == INTERRUPTED else 0


def _go_on(session: Session, state: dict[str, Any], folder: Path) -> None:
    try:
        session.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint {folder} holds something that no run wrote ({error!r}); go on from another one"
        ) from error


def _stop(session: Session | None, files: RunFiles) -> None:
    assert session is not None
    files.note("stopping after the collection under way; once more (Ctrl-C) stops at once, without saving")
    session.stop(INTERRUPTED)


def _checkpoint_to_resume(config: SwingshiftConfig, folder: Path) -> Path | None:
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        assert trainer.resume_from_path is not None
        return Path(trainer.resume_from_path).expanduser()
    if trainer.resume_mode == "auto":
        checkpoints = list_checkpoints(folder / "checkpoints")
        return checkpoints[-1] if checkpoints else None
    return None


async def _connect(cluster: RayCluster, interrupts: Interrupts) -> None:
    await cluster.start()
    interrupts.install()
    logger.info("connected to Ray")


@contextlib.asynccontextmanager
async def _devices(
    config: SwingshiftConfig,
    device_kind: str,
    files: RunFiles,
    folder: Path,
    cluster: RayCluster,
    interrupts: Interrupts,
) -> AsyncIterator[tuple[Pool, Pool, str]]:
    """Every device process, ready, and the model's folder; all processes gone afterwards, whatever happens."""
    run_id = f"swingshift-{uuid.uuid4().hex[:8]}"
    pools: list[Pool] = []
    started = time.monotonic()
    warm_start = WarmStart(config, folder / "init_model")
    try:
        parts = [] if cluster.is_shared else ["Ray"]
        if warm_start.is_needed:
            await warm_start.start()
            parts.append("the warm start of the built-in model")
        files.note(f"starting {', '.join([*parts, 'the device processes'])}")
        await _connect(cluster, interrupts)
        pools.append(await place_trainer(config, device_kind, run_id))
        pools.append(await place_standalone(config, device_kind, run_id))
        model_path = await warm_start.model_path()
        logger.info("the model is in %s", model_path)
        await _start_actors(pools, model_path)
        names = ", ".join(name for pool in pools for name in pool.names)
        files.note(f"ready after {time.monotonic() - started:.1f} s: training on {names} ({device_kind})")
        yield pools[0], pools[1], model_path
    finally:
        await warm_start.kill()
        for pool in pools:
            pool.kill()


async def _start_actors(pools: list[Pool], model_path: str) -> None:
    trainer = pools[0]
    try:
        async with asyncio.timeout(START_TIMEOUT_S), asyncio.TaskGroup() as tasks:
            meeting_place: str | None = None
            if len(trainer.actors) > 1:
                meeting_place = await answer(trainer.actors[0].rendezvous.remote(), trainer.names[0])
            for pool in pools:
                for actor, name in zip(pool.actors, pool.names, strict=True):
                    tasks.create_task(_start_actor(actor, name, model_path, meeting_place))
    except TimeoutError:
        raise TrainerError(f"the device processes were not ready within {START_TIMEOUT_S:g} s") from None
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _start_actor(actor: Any, name: str, model_path: str, meeting_place: str | None) -> None:
    where = await answer(actor.start.remote(model_path, meeting_place), name)
    logger.info("%s: %s", name, where)


@contextlib.contextmanager
def _log_to(path: Path, secrets: Secrets) -> Iterator[None]:
    """Everything the control plane logs goes to the run's log, secrets excepted."""
    root = logging.getLogger("swingshift")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(MaskingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", secrets))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
