"""Slots stay dense, nobody overtakes, nothing is lost."""

from __future__ import annotations

from concurrent.futures import Future

from engine_models import ask
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.engines.prefill import batch_prefills, group_joins
from swingshift.engines.scheduler import Job, Scheduler


def job(n: int, length: int = 3) -> Job:
    return Job.build(ask((1,) * length, n=n), Future())


@settings(max_examples=100, deadline=None)
@given(
    slots=st.integers(1, 6),
    events=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 5)),
            st.tuples(st.just("leave"), st.sets(st.integers(0, 5))),
            st.tuples(st.just("abort"), st.integers(0, 9)),
        ),
        max_size=30,
    ),
)
def test_rows_are_dense_first_come_first_served_and_follow_the_plan(slots, events):
    scheduler = Scheduler()
    jobs, joined, mirror, gone = [], [], {}, set()
    for kind, value in events:
        if kind == "add":
            jobs.append(job(value))
            scheduler.add(jobs[-1])
        elif kind == "leave":
            for row in value & set(range(len(scheduler.rows))):
                scheduler.leave(row)
                mirror.pop(row, None)
        elif value < len(jobs):
            scheduler.remove(lambda j, v=value: j is jobs[v])
            gone.update(map(id, jobs[value].responses))
            mirror = {row: r for row, r in mirror.items() if r.job is not jobs[value]}
        plan = scheduler.plan(slots)
        for source, target in plan.moves:
            assert target not in mirror
            mirror[target] = mirror.pop(source)
        for row, response in plan.joins:
            assert row not in mirror
            mirror[row] = response
            joined.append(response)
        assert list(scheduler.rows) == [mirror[row] for row in range(len(mirror))]
        assert len(mirror) <= slots
        assert len(mirror) == slots or not scheduler.waiting
    everyone = [r for j in jobs for r in j.responses]
    order = [r for r in everyone if r in joined]
    assert joined == order, "nobody overtakes"
    waiting = [r for r in everyone if r not in joined and id(r) not in gone]
    assert list(scheduler.waiting) == waiting, "nobody is lost"


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=12))
def test_prefill_passes_hold_everything_within_the_limit(lengths):
    joins = [(row, r) for row, n in enumerate(lengths) for r in job(1, n).responses]
    prefills = group_joins(joins)
    passes = batch_prefills(prefills, max_tokens=64)
    assert sorted(id(p) for batch in passes for p in batch) == sorted(map(id, prefills))
    for batch in passes:
        assert len(batch) == 1 or len(batch) * max(p.length for p in batch) <= 64


def test_a_group_is_one_prefill_per_context():
    one = Job.build(ask((1, 2, 3), prefixes=((), (4,), (), (4,), (5,))), Future())
    other = Job.build(ask((1, 2, 3)), Future())
    joins = list(enumerate([*one.responses, *other.responses]))
    assert [(p.tokens, p.rows) for p in group_joins(joins)] == [
        ((1, 2), (0, 2)),
        ((1, 2, 3), (1, 3)),
        ((1, 2, 3), (4,)),
        ((1, 2), (5,)),
    ]
