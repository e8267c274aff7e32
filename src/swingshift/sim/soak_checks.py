"""What a soak run checks besides the invariants of every simulated run: requests, routing, batches, checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swingshift.core.buffer import OffPolicyStrategy
from swingshift.core.types import Sample, SampleGroup, WeightVersion
from swingshift.runtime.rollouter import Rollouter
from swingshift.sim.fault_ports import FaultyWorld
from swingshift.sim.invariants import InvariantChecker
from swingshift.sim.loop import VirtualTimeLoop
from swingshift.sim.soak_requests import BalanceCheck, RequestChecks
from swingshift.sim.soak_world import Mode, SoakWorld
from swingshift.sim.world import World

MOST_CALLBACKS = 3_000_000
LONGEST_S = 100_000.0
"""Beyond either a run of these sizes makes no progress, whatever it does."""


class CrashError(Exception):
    """Everything died at once."""


class SessionChecks:
    """``after_events`` is the loop's; ``trained`` the groups that the checkpoint it began with was trained on."""

    def __init__(
        self,
        sizes: SoakWorld,
        world: World,
        ports: FaultyWorld,
        requests: RequestChecks,
        invariants: InvariantChecker,
        trained: Sequence[int],
        is_resumed: bool,
    ) -> None:
        self.crash_at_s = float("inf")
        self.is_stopping = False
        self._sizes = sizes
        self._world = world
        self._session = world.session
        self._replicas = ports.replicas
        self._invariants = invariants
        self._trained = set(trained)
        self._is_resumed = is_resumed
        self._lengths = sizes.lengths()
        self._version: WeightVersion = -1
        self._balance = BalanceCheck(world) if sizes.routing == "least_inflight" else None
        requests.balance = self._balance
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self._loop = loop

    def after_events(self) -> None:
        self._invariants.after_events()
        if self._balance is not None:
            self._balance.look()
        table = self._session.balancer.table
        for replica in self._replicas.values():
            unknown = [r for r in table.request_ids(replica.id) if r not in replica.requests]
            assert not unknown, f"{replica.id} is counted as busy with {unknown}, which nobody asked it for"
        version = self._session.controller.version
        assert version >= self._version, f"the weight version fell from {self._version} to {version}"
        self._version = version
        ratio = getattr(self._session.policy, "deactivate_ratio", 0.0)
        assert 0.0 <= ratio <= 1.0, f"the policy's ratio left [0, 1]: {ratio}"
        now = self._loop.time()
        if now >= self.crash_at_s:
            self.crash_at_s = float("inf")
            raise CrashError
        assert now < LONGEST_S, f"no end after {now:.0f} virtual seconds"
        assert self._loop.num_callbacks < MOST_CALLBACKS, f"no end after {self._loop.num_callbacks} events"

    # --- batches ----------------------------------------------------------------------------------------------

    def on_train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> None:
        """The trainer is about to train on them at ``version``."""
        rollouter = self._session.rollouter
        is_last = rollouter.num_remaining == 0 or self.is_stopping
        size = self._sizes.collection_size
        assert len(groups) == size or (is_last and 0 < len(groups) < size), f"{len(groups)} groups instead of {size}"
        for group in groups:
            name = f"group {group.group_id}"
            assert group.group_id not in self._trained, f"{name} is trained on twice"
            self._trained.add(group.group_id)
            assert group.submit_version <= version, f"{name} was submitted in the future"
            assert len(group.samples) == self._sizes.num_responses, f"{name} has {len(group.samples)} responses"
            for index, sample in enumerate(group.samples):
                self._check_sample(f"response {index} of {name}", group, index, sample, version)
        if isinstance(rollouter, Rollouter):
            return
        rules = self._sizes.rules()
        if rules.max_off_policy_threshold is not None and rules.max_off_policy_strategy is OffPolicyStrategy.DROP:
            ages = [version - group.submit_version + 1 for group in groups]
            assert max(ages) <= rules.max_off_policy_threshold, f"trained on groups of age {max(ages)}"

    def _check_sample(
        self, name: str, group: SampleGroup, index: int, sample: Sample, version: WeightVersion
    ) -> None:
        size, expected = len(sample.token_ids), min(self._lengths(str(group.group_id), index), self._sizes.max_tokens)
        if self._is_resumed:
            # What becomes of tokens from a checkpoint is drawn again, for another place in the request.
            expected = min(max(size, 1), self._sizes.max_tokens)
        assert size == expected, f"{name} has {size} tokens instead of {expected}"
        assert list(sample.token_ids) == list(range(size)), f"{name} lost or doubled tokens"
        assert len(sample.log_probs) == size, f"{name} has {len(sample.log_probs)} log-probs"
        assert sum(n for _, n in sample.version_spans) == size, f"{name}: its versions do not cover its tokens"
        versions = [v for v, _ in sample.version_spans]
        assert versions == sorted(set(versions)), f"{name}: its versions decrease: {versions}"
        assert group.submit_version <= versions[0] and versions[-1] <= version, f"{name}: versions {versions}"
        assert sample.reward is not None, f"{name} has no reward"
        if self._sizes.mode is Mode.SYNC and not self._is_resumed:
            # A run that is stopped in mid-step trains on the rest of its batch after the next weight sync.
            assert versions == [version], f"{name} is off-policy at version {version}: {versions}"
