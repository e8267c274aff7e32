"""Configuration and scenario files."""

from __future__ import annotations

from .case import DEEP, HUGE, Case, Content, bad


def config(content: Content, *parts: str) -> Case:
    return bad("config check my.yaml", "my.yaml", *parts, files={"my.yaml": content})


def scenario(content: Content, *parts: str) -> Case:
    return bad("simulate mine.yaml --out out", "mine.yaml", *parts, files={"mine.yaml": content})


CASES: list[Case] = [
    # not a file of settings at all
    config(None, "cannot be read"),
    config(b"\xff\xfe\x00t", "not UTF-8"),
    config(b"trainer:\n  seed: \xe9\n", "not UTF-8"),
    config("- trainer\n", "not a mapping"),
    config("just words\n", "not a mapping"),
    config("7\n", "not a mapping"),
    config("trainer: {seed: 1}\n---\ntrainer: {seed: 2}\n", "YAML"),
    config(DEEP, "nested too deeply"),
    # not YAML
    config("trainer:\n\tseed: 1\n", "line 2", "correct the YAML"),
    config("trainer:\n  seed: 1\n nnodes: 1\n", "line 3", "correct the YAML"),
    config("trainer: {seed: 1\n", "correct the YAML"),
    config("trainer: 'open\n", "correct the YAML"),
    config("trainer: @x\n", "line 1", "correct the YAML"),
    config("trainer:\n  seed: *nowhere\n", "line 2", "correct the YAML"),
    config("trainer:\n  seed: 1\ntrainer:\n  seed: 2\n", "line 3", "duplicate key trainer"),
    config("trainer:\n  seed: !!python/name:os.system\n", "line 2"),
    config("trainer:\n  seed: 0x_\n", "quote it"),
    config(f"trainer:\n  seed: {HUGE}\n", "quote it"),
    config("trainer: &t\n  seed: *t\n", "my.yaml"),
    config("trainer:\n  seed: ${trainer.\n", "broken interpolation"),
    config("? [a, b]\n: 1\n", "my.yaml"),
    # settings that are none
    config("1: 2\n", "the name 1 is not text", "quote it"),
    config("null: 2\n", "a key that is not text", "quote it"),
    config("trainer:\n  1: 2\n", "trainer.1"),
    config("trainer: [1, 2]\n", "trainer=", "not a section"),
    config("trainer: text\n", "trainer='text'", "not a section"),
    config("trainer:\n  seed: {a: 1}\n", "trainer.seed"),
    config("trainer:\n  seed: 2024-01-01\n", "trainer.seed"),
    config("trainer:\n  seed: 1.5\n", "trainer.seed=1.5", "fraction"),
    config("trainer:\n  nnodes: -1\n", "trainer.nnodes=-1", "out of range"),
    config("trainer:\n  logger: {console: 1}\n", "trainer.logger"),
    config("actor_rollout_ref:\n  rollout:\n    temperature: .nan\n", "temperature=nan", "not finite"),
    config("data:\n  train_files: {a: b}\n", "data.train_files"),
    config("data:\n  train_files: 3\n", "data.train_files=3"),
    config("optimizer:\n  lr: 1\n", "optimizer.lr=1", "unknown key"),
    config("trainer:\n  sed: 1\n  nodes: 2\n", "trainer.sed=1", "trainer.nodes=2"),
    bad(
        "config check my.yaml",
        "trainer.seed=${data.sed}",
        "${data.seed}?",
        files={"my.yaml": "trainer: {seed: '${data.sed}'}\n"},
    ),
    bad("train my.yaml", "trainer.seed='x'", "my.yaml", files={"my.yaml": "trainer: {seed: x}\n"}),
    bad("train my.yaml gone.yaml", "gone.yaml", "no such file", files={"my.yaml": ""}),
    bad("config show my.yaml", "my.yaml", "not a mapping", files={"my.yaml": "[]\n"}),
    bad("plan --memory my.yaml", "my.yaml", "line 1", files={"my.yaml": "a: ]\n"}),
    bad("plan --memory my.yaml", "my.yaml", files={"my.yaml": DEEP}),
    # contradictions
    bad(
        "train my.yaml",
        "rollout.nnodes=0",
        "use_dynamic_resource_scheduling=true",
        files={"my.yaml": "rollout: {nnodes: 0}\nasync_training: {use_dynamic_resource_scheduling: false}\n"},
    ),
    bad(
        "train my.yaml",
        "trainer.test_freq=2",
        "data.val_files",
        files={"my.yaml": "trainer: {test_freq: 2}\n"},
    ),
    # scenarios
    scenario(None, "cannot be read"),
    scenario(b"\x80\x81", "not UTF-8"),
    scenario("[]\n", "not a mapping"),
    scenario("cluster: {trainer_devices: 1\n", "correct the YAML"),
    scenario("cluster: {trainer_device: 1}\n", "cluster.trainer_devices?"),
    scenario("cluster: {trainer_devices: many}\n", "cluster.trainer_devices='many'"),
    scenario("efficiency: {train_mfu: 1.5}\n", "efficiency.train_mfu=1.5", "out of range"),
    scenario("workload: {lengths: {kind: normal}}\n", "workload.lengths.kind='normal'", "lognormal"),
    bad(
        "simulate mine.yaml --out out",
        "cluster.rollout_devices=0",
        "use_dynamic_resource_scheduling=true",
        files={
            "mine.yaml": "cluster: {rollout_devices: 0}\nasync_training: {use_dynamic_resource_scheduling: false}\n"
        },
    ),
    bad(
        "simulate mine.yaml --out out",
        "trainer_devices=3",
        "devices_per_replica=2",
        files={"mine.yaml": "cluster: {trainer_devices: 3, rollout_devices: 2, devices_per_replica: 2}\n"},
    ),
]
