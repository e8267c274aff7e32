"""``swingshift train``: from a checked configuration to a finished run, leaving no process behind.

Bad data and broken reward functions are found before anything is written or started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from transformers import PreTrainedTokenizerBase

from swingshift.cluster.calls import answer
from swingshift.cluster.placement import Pool, place_standalone, place_trainer, start_ray
from swingshift.cluster.replicas import ObjectStoreWeightSync, RayReplica, RayTrainer
from swingshift.cluster.run_files import LOG_FILE, RunFiles
from swingshift.config.checks import check_against_data
from swingshift.config.document import to_yaml
from swingshift.config.plan import budget_numbers, expected_groups, resolve_device_kind
from swingshift.config.run_dir import CONFIG_FILE, prepare_run_dir
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.types import Prompt, ReplicaKind, SamplingParams
from swingshift.errors import SwingshiftError
from swingshift.runtime.checkpoint import CheckpointStore, list_checkpoints
from swingshift.runtime.rollouter import RolloutSettings
from swingshift.runtime.session import Ports, Session, SessionSettings
from swingshift.runtime.validation import Validator
from swingshift.schedule.base import build_policy
from swingshift.tasks.prompts import DatasetPromptSource, load_prompts
from swingshift.tasks.reward_pool import RewardPool
from swingshift.tasks.tokenizer import load_tokenizer
from swingshift.training.warm_start import TINY, WarmStart, tiny_tokenizer

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run reads, checked."""

    tokenizer: PreTrainedTokenizerBase
    prompts: list[Prompt]
    val_prompts: list[Prompt]
    source: DatasetPromptSource
    reward: RewardPool


def run_training(config: SwingshiftConfig, config_sources: str) -> int:
    """Train. Returns the exit code: 0 when finished, 130 when interrupted; errors are raised."""
    return asyncio.run(_run(config, config_sources))


async def _run(config: SwingshiftConfig, config_sources: str) -> int:
    inputs = _read_inputs(config)
    try:
        await inputs.reward.check(inputs.prompts[0])
        folder = prepare_run_dir(config)
        (folder / CONFIG_FILE).write_text(to_yaml(config), encoding="utf-8")
        with _log_to(folder / LOG_FILE):
            logger.info("configuration: %s", config_sources)
            return await _train(config, inputs, folder)
    finally:
        await inputs.reward.close()


def _read_inputs(config: SwingshiftConfig) -> Inputs:
    path = config.actor_rollout_ref.model.path
    tokenizer: PreTrainedTokenizerBase
    if path == TINY:
        tokenizer = tiny_tokenizer(config)
    else:
        tokenizer = load_tokenizer(path, trust_remote_code=config.actor_rollout_ref.model.trust_remote_code)
    prompts = load_prompts(config.data, tokenizer)
    for warning in check_against_data(config, len(prompts)):
        logger.warning("%s", warning)
    source = DatasetPromptSource(
        prompts,
        epochs=config.trainer.total_epochs,
        shuffle=config.data.shuffle,
        seed=config.data.seed,
        limit=config.rollout.total_rollout_steps,
    )
    val_prompts = load_prompts(config.data, tokenizer, "val") if config.data.val_files else []
    reward = RewardPool.from_config(config.reward, config.data, tokenizer)
    return Inputs(tokenizer, prompts, val_prompts, source, reward)


async def _train(config: SwingshiftConfig, inputs: Inputs, folder: Path) -> int:
    device_kind = resolve_device_kind(config)
    resume_from = _checkpoint_to_resume(config, folder)
    expected = expected_groups(config, len(inputs.prompts))
    per_cycle = budget_numbers(config).step_required_samples
    num_cycles = None if expected is None else -(-expected // per_cycle)
    files = RunFiles(folder, config, lambda ids: str(inputs.tokenizer.decode(list(ids))), num_cycles)
    session: Session | None = None
    started, exit_reason = time.monotonic(), "failed to start"
    try:
        async with _devices(config, device_kind, files, folder) as (trainer_pool, standalone_pool):
            session, store = _compose(config, inputs, files, folder, trainer_pool, standalone_pool)
            if resume_from is not None:
                files.note(f"resuming from {resume_from}")
                session.load_state_dict(await store.load(resume_from))
            exit_reason = "failed"
            with _stop_on_signals(session):
                exit_reason = await session.run()
    except SwingshiftError as error:
        exit_reason = f"{type(error).__name__}: {error}"
        logger.exception("the run ends with an error")
        raise
    except asyncio.CancelledError:
        exit_reason = "interrupted"
        raise
    except BaseException as error:
        exit_reason = f"{type(error).__name__}: {error}"
        logger.exception("the run ends with an unexpected error")
        raise
    finally:
        if session is None:
            files.close({}, time.monotonic() - started, exit_reason)
        else:
            files.close(session.timeline.totals(session.now()), session.now(), exit_reason)
    return 130 if exit_reason == "interrupted" else 0


def _checkpoint_to_resume(config: SwingshiftConfig, folder: Path) -> Path | None:
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        assert trainer.resume_from_path is not None
        return Path(trainer.resume_from_path)
    if trainer.resume_mode == "auto":
        checkpoints = list_checkpoints(folder / "checkpoints")
        return checkpoints[-1] if checkpoints else None
    return None


@contextlib.asynccontextmanager
async def _devices(
    config: SwingshiftConfig, device_kind: str, files: RunFiles, folder: Path
) -> AsyncIterator[tuple[Pool, Pool]]:
    """Ray, the model and every device process, ready; all gone afterwards, whatever happens."""
    run_id = f"swingshift-{uuid.uuid4().hex[:8]}"
    pools: list[Pool] = []
    warm_start = WarmStart(config, folder / "init_model")
    warm_start.start()
    is_own = False
    try:
        files.note("starting Ray" + (" and warm-starting the built-in model" if warm_start.is_needed else ""))
        is_own = start_ray(config, device_kind)
        pools.append(await place_trainer(config, device_kind, run_id))
        pools.append(await place_standalone(config, device_kind, run_id))
        model_path = await warm_start.model_path()
        await _start_actors(pools, model_path)
        names = ", ".join(name for pool in pools for name in pool.names)
        files.note(f"training on {names} ({device_kind})")
        yield pools[0], pools[1]
    finally:
        warm_start.kill()
        for pool in pools:
            pool.kill()
        if ray.is_initialized():
            ray.shutdown()
        if is_own:
            logger.info("the local Ray cluster is shut down")


async def _start_actors(pools: list[Pool], model_path: str) -> None:
    trainer = pools[0]
    init_method: str | None = None
    if len(trainer.actors) > 1:
        init_method = await answer(trainer.actors[0].rendezvous.remote(), trainer.names[0])
    calls = [
        answer(a.start.remote(model_path, init_method), n)
        for p in pools
        for a, n in zip(p.actors, p.names, strict=True)
    ]
    async with asyncio.timeout(START_TIMEOUT_S):
        await asyncio.gather(*calls)


def _compose(
    config: SwingshiftConfig, inputs: Inputs, files: RunFiles, folder: Path, trainer_pool: Pool, standalone_pool: Pool
) -> tuple[Session, CheckpointStore]:
    rollout, training = config.actor_rollout_ref.rollout, config.async_training
    lends = training.use_dynamic_resource_scheduling
    trainer = RayTrainer(trainer_pool.names, trainer_pool.actors)
    store = CheckpointStore(folder / "checkpoints", trainer, config.trainer.max_actor_ckpt_to_keep)
    policy = build_policy(
        training.dynamic_schedule_policy if lends else "static_fully_async",
        deactivate_ratio=training.dynamic_schedule_deactivate_ratio,
        only_hybrid=config.rollout.nnodes == 0,
        **training.dynamic_schedule_policy_kwargs,
    )
    ports = Ports(
        trainer=trainer,
        standalone=_replicas(standalone_pool, ReplicaKind.STANDALONE),
        hybrid=_replicas(trainer_pool, ReplicaKind.HYBRID) if lends else [],
        weight_sync=ObjectStoreWeightSync(trainer),
        prompts=inputs.source,
        reward=inputs.reward,
        saver=store,
        validate=_validator(config, inputs),
    )
    settings = SessionSettings(
        numbers=budget_numbers(config),
        rollout=RolloutSettings(
            num_responses=rollout.n,
            sampling=_sampling(config, inputs.tokenizer, rollout.temperature, rollout.top_p, rollout.top_k),
            max_sample_retries=training.max_sample_retries,
            max_failed_ratio=training.max_failed_ratio,
        ),
        enable_rebalance=training.dynamic_schedule_enable_rebalance,
        partial_rollout=rollout.partial_rollout,
        routing=rollout.routing,
        sticky_cache_size=training.sticky_cache_size,
        replica_wait_timeout_s=training.replica_wait_timeout_s,
        call_timeout_s=training.call_timeout_s,
        release_kv_cache=rollout.free_cache_engine,
        save_freq=config.trainer.save_freq,
        test_freq=config.trainer.test_freq,
        seed=config.trainer.seed,
    )
    session = Session(ports, settings, policy, on_cycle=files.on_cycle, on_span=files.on_span)
    return session, store


def _replicas(pool: Pool, kind: ReplicaKind) -> list[RayReplica]:
    return [RayReplica(name, kind, actor) for name, actor in zip(pool.names, pool.actors, strict=True)]


def _sampling(
    config: SwingshiftConfig, tokenizer: PreTrainedTokenizerBase, temperature: float, top_p: float, top_k: int
) -> SamplingParams:
    return SamplingParams(
        max_tokens=config.actor_rollout_ref.rollout.response_length,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop_token_ids=_stop_token_ids(config, tokenizer),
    )


def _stop_token_ids(config: SwingshiftConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokenizer's end token, and those the model's own generation configuration adds (chat models do)."""
    found: set[int] = set()
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    path = config.actor_rollout_ref.model.path
    if path != TINY and (Path(path) / "generation_config.json").is_file():
        from transformers import GenerationConfig

        ids: Any = GenerationConfig.from_pretrained(path).eos_token_id
        found.update([ids] if isinstance(ids, int) else ids or [])
    return tuple(sorted(found))


def _validator(config: SwingshiftConfig, inputs: Inputs) -> Validator | None:
    if config.trainer.test_freq <= 0 or not inputs.val_prompts:
        return None
    kwargs = config.actor_rollout_ref.rollout.val_kwargs
    num_devices = config.rollout.num_devices or config.trainer.num_devices
    return Validator(
        inputs.val_prompts,
        inputs.reward,
        _sampling(config, inputs.tokenizer, kwargs.temperature, 1.0, -1),
        kwargs.n,
        max_in_flight=config.async_training.concurrent_samples_per_replica * num_devices,
    )


@contextlib.contextmanager
def _stop_on_signals(session: Session) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the run after the collection under way; the second ends it at once."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    seen = 0

    def on_signal() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            session.stop("interrupted")
        else:
            main.cancel()

    watched = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.getsignal(s) for s in watched]
    for number in watched:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number, handler in zip(watched, previous, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Everything the control plane logs goes to the run's log."""
    root = logging.getLogger("swingshift")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
