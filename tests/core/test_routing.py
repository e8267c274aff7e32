"""Routing by table, and against a model that is too simple to be wrong."""

from __future__ import annotations

from collections import OrderedDict
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from swingshift.core.routing import Lease, RoutingTable


def table_of(*replicas: str, **kwargs: object) -> RoutingTable:
    table = RoutingTable(**kwargs)  # type: ignore[arg-type]
    for replica in replicas:
        table.add(replica)
    return table


def acquired(table: RoutingTable, request_id: str, num_tokens: int = 0) -> Lease:
    lease = table.acquire(request_id, num_tokens)
    assert lease is not None
    return lease


def test_nothing_is_routable_at_first() -> None:
    table = table_of()
    assert table.acquire("a") is None
    assert len(table) == 0 and table.loads() == {} and table.excess() == {}


def test_ties_rotate_instead_of_hitting_the_first_one() -> None:
    table = table_of("a", "b", "c")
    chosen = [acquired(table, f"r{i}").replica_id for i in range(9)]
    assert chosen == ["a", "b", "c"] * 3
    # Sequential traffic, one request at a time, must not pin one replica either.
    table = table_of("a", "b", "c")
    sequential = []
    for i in range(6):
        lease = acquired(table, f"r{i}")
        sequential.append(lease.replica_id)
        table.release(lease)
    assert sequential == ["a", "b", "c", "a", "b", "c"]


def test_a_newcomer_gets_the_requests_until_it_has_caught_up() -> None:
    table = table_of("old")
    for i in range(4):
        acquired(table, f"r{i}")
    table.add("new")
    assert [acquired(table, f"n{i}").replica_id for i in range(4)] == ["new"] * 4
    assert {acquired(table, f"m{i}").replica_id for i in range(2)} == {"old", "new"}


def test_sticky_until_the_replica_leaves() -> None:
    table = table_of("a", "b")
    first = acquired(table, "r")
    for i in range(4):
        acquired(table, f"load{i}")
    table.release(first)
    for i in range(3):
        acquired(table, f"more{i}")
    assert acquired(table, "r").replica_id == first.replica_id
    table.remove(first.replica_id)
    other = acquired(table, "r")
    assert other.replica_id != first.replica_id
    # A replica that returns is a new one: nothing sticks to its earlier life.
    table.release(other)
    table.remove(other.replica_id)
    table.add("c")
    table.add(other.replica_id)
    acquired(table, "x")
    assert acquired(table, "r").replica_id == other.replica_id, "least loaded, not remembered"


def test_sticky_memory_is_bounded_and_forgets_the_longest_unused() -> None:
    table = table_of("a", "b", sticky_capacity=2)
    leases = {name: acquired(table, name) for name in ("p", "q")}
    assert [leases[n].replica_id for n in "pq"] == ["a", "b"]
    for lease in leases.values():
        table.release(lease)
    table.release(acquired(table, "p"))  # p is used again, q is now the oldest
    table.release(acquired(table, "new"))
    cleared, loads = table.clear_sticky()
    assert cleared == 2 and loads == {"a": 0, "b": 0}


def test_forgotten_requests_go_to_the_least_loaded() -> None:
    table = table_of("a", "b")
    lease = acquired(table, "r")
    acquired(table, "s")
    acquired(table, "t")
    table.release(lease)
    acquired(table, "u")
    acquired(table, "v")
    busiest = max(table.loads(), key=table.load)
    table.forget_sticky(["r", "unknown"])
    assert acquired(table, "r").replica_id != busiest


def test_late_release_from_an_earlier_life_changes_nothing() -> None:
    table = table_of("a")
    old = [acquired(table, f"r{i}") for i in range(2)]
    table.remove("a")
    table.add("a")
    new = [acquired(table, f"r{i}") for i in range(2)]
    assert [table.release(lease) for lease in old] == [False, False]
    assert table.load("a") == 2
    assert [table.release(lease) for lease in new] == [True, True]
    assert [table.release(lease) for lease in new] == [False, False], "never below zero"
    assert table.load("a") == 0


def test_release_to_an_unknown_replica_is_ignored() -> None:
    table = table_of("a")
    lease = acquired(table, "r")
    assert table.remove("a") and not table.remove("a")
    assert not table.release(lease) and not table.is_alive(lease)
    assert table.load("a") == 0 and table.request_ids("a") == []


def test_adding_twice_and_asking_twice_are_bugs() -> None:
    table = table_of("a")
    with pytest.raises(AssertionError, match="routable already"):
        table.add("a")
    acquired(table, "r")
    with pytest.raises(AssertionError, match="is on a already"):
        table.acquire("r")


def test_least_tokens_follows_tokens_not_requests() -> None:
    table = table_of("a", "b", strategy="least_tokens")
    big = acquired(table, "big", 1000)
    assert big.replica_id == "a"
    assert [acquired(table, f"s{i}", 100).replica_id for i in range(5)] == ["b"] * 5
    table.release(big)
    assert acquired(table, "next", 1).replica_id == "a"


def test_power_of_two_takes_the_less_loaded_of_two_draws() -> None:
    draws = iter([0, 1, 0, 1, 2, 2])
    table = table_of("a", "b", "c", strategy="power_of_two", randbelow=lambda n: next(draws))
    assert [acquired(table, f"r{i}").replica_id for i in range(3)] == ["a", "b", "c"]
    with pytest.raises(AssertionError, match="randomness"):
        table_of("a", strategy="power_of_two").acquire("r")


def test_deterministic_choice_depends_on_the_request_and_the_pool_only() -> None:
    ids = [f"r{i}" for i in range(40)]
    one = table_of("a", "b", "c", strategy="deterministic")
    other = table_of("c", "a", "b", strategy="deterministic")
    choices = [acquired(one, i).replica_id for i in ids]
    assert choices == [acquired(other, i).replica_id for i in reversed(ids)][::-1]
    assert choices == ["abc"[crc32(i.encode()) % 3] for i in ids], "and not on the process"


def test_unknown_strategy() -> None:
    with pytest.raises(KeyError):
        RoutingTable("fastest")


@pytest.mark.parametrize(
    ("loads", "moved"),
    [
        ({"a": 4, "b": 0}, {"a": 2}),
        ({"a": 3, "b": 0}, {"a": 1}),
        ({"a": 2, "b": 2, "c": 0}, {"b": 1}),
        ({"a": 1, "b": 1}, {}),
        ({"a": 7, "b": 1, "c": 1}, {"a": 4}),
        ({"a": 0}, {}),
    ],
)
def test_excess_moves_the_youngest_beyond_the_fair_share(loads: dict[str, int], moved: dict[str, int]) -> None:
    table = table_of()
    for replica, load in loads.items():  # the newest is the emptiest, until it has its load
        table.add(replica)
        for i in range(load):
            assert acquired(table, f"{replica}{i}").replica_id == replica
    excess = table.excess()
    assert {replica: len(ids) for replica, ids in excess.items()} == moved
    for replica, ids in excess.items():
        assert ids == table.request_ids(replica)[-len(ids) :]


class Model(RuleBasedStateMachine):
    """Least in-flight with a sticky LRU, next to plain dictionaries."""

    leases = Bundle("leases")
    replicas = st.sampled_from(["a", "b", "c", "d"])
    requests = st.sampled_from([f"r{i}" for i in range(12)])

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 5
        self.table = RoutingTable(sticky_capacity=self.capacity)
        self.held: dict[str, set[Lease]] = {}
        self.sticky: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self.life: dict[str, int] = {}
        self.num_lives = 0

    @rule(replica=replicas)
    def add(self, replica: str) -> None:
        if replica not in self.held:
            self.table.add(replica)
            self.num_lives += 1
            self.held[replica], self.life[replica] = set(), self.num_lives

    @rule(replica=replicas)
    def remove(self, replica: str) -> None:
        assert self.table.remove(replica) == (replica in self.held)
        self.held.pop(replica, None)

    @rule(target=leases, request=requests)
    def acquire(self, request: str) -> Lease | None:
        if any(lease.request_id == request for held in self.held.values() for lease in held):
            return None
        lease = self.table.acquire(request, 3)
        if not self.held:
            assert lease is None
            return None
        assert lease is not None
        known = self.sticky.get(request)
        if known is not None and known[0] in self.held and self.life[known[0]] == known[1]:
            assert lease.replica_id == known[0], "sticky"
        else:
            least = min(len(held) for held in self.held.values())
            assert len(self.held[lease.replica_id]) == least, "least in flight"
        self.held[lease.replica_id].add(lease)
        self.sticky[request] = (lease.replica_id, self.life[lease.replica_id])
        self.sticky.move_to_end(request)
        if len(self.sticky) > self.capacity:
            self.sticky.popitem(last=False)
        return lease

    @rule(lease=leases)
    def release(self, lease: Lease | None) -> None:
        if lease is None:
            return
        is_held = lease in self.held.get(lease.replica_id, set())
        assert self.table.release(lease) == is_held
        if is_held:
            self.held[lease.replica_id].remove(lease)

    @precondition(lambda self: self.sticky)
    @rule()
    def clear(self) -> None:
        num_cleared, loads = self.table.clear_sticky()
        assert num_cleared <= self.capacity
        assert loads == {r: len(h) for r, h in self.held.items()}
        self.sticky.clear()

    @invariant()
    def loads_agree(self) -> None:
        assert self.table.loads() == {r: len(h) for r, h in self.held.items()}
        assert self.table.total_inflight == sum(len(h) for h in self.held.values())
        for replica, life in self.table._lives.items():
            assert life.num_tokens == 3 * len(self.held[replica])
        assert len(self.table._sticky) <= self.capacity

    @invariant()
    def excess_evens_out(self) -> None:
        excess = self.table.excess()
        after = sorted(len(h) - len(excess.get(r, ())) for r, h in self.held.items())
        num_moved = sum(len(ids) for ids in excess.values())
        if self.held:
            fair, larger = divmod(self.table.total_inflight, len(self.held))
            assert all(n <= fair + (larger > 0) for n in after)
            room = sum(max(0, fair - n) for n in after)
            assert num_moved >= room, "enough moves to fill every replica to its share"


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
