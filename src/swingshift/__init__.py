"""Swingshift: fully-asynchronous RL post-training that lends the trainer's idle devices to rollout."""

__version__ = "0.1.0"
