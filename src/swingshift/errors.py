"""Every exception Swingshift raises on purpose.

::

    SwingshiftError
    ├── ConfigError            bad input: names the key, the value and the remedy (also a ValueError)
    │   └── ReplayBufferError  a replay buffer of the user's own lacks a method (also a TypeError)
    ├── DataError              bad training data or reward function (also a ValueError)
    ├── ReplicaError           one inference replica misbehaved
    │   ├── NotAcceptingError  it is going to sleep or asleep: ask another one
    │   └── ReplicaDiedError   its process is gone or broke its deadline
    ├── NoReplicaError         nobody can generate, and nobody is about to
    ├── TrainerError           the train worker failed
    ├── TransitionError        a lending transition could not be completed or rolled back
    ├── TooManyFailuresError   more groups failed than the configured rate allows
    ├── CheckpointError        a checkpoint cannot be written or read
    ├── StalledError           nothing moves any more (says who waits for what)
    └── DeadlockError          nothing is scheduled and somebody still waits (says who, and for what)

The command line turns ``ConfigError`` and ``DataError`` met before training into one line and exit code 2. Whatever
ends a run under way, of whichever class, is exit code 1, after what was trained was saved.
"""

from __future__ import annotations


class SwingshiftError(Exception):
    """Base class of all errors raised on purpose."""

    ended_a_run = False
    """Set on what ended a run under way, by the session: it was not found before training."""


class ConfigError(SwingshiftError, ValueError):
    """A configuration value is missing, unknown, of the wrong type or contradicts another one."""


class ReplayBufferError(ConfigError, TypeError):
    """A user's own replay buffer lacks a method that the step loop needs."""


class DataError(SwingshiftError, ValueError):
    """Training data or a reward function cannot be used."""


class ReplicaError(SwingshiftError):
    """An inference replica misbehaved."""


class NotAcceptingError(ReplicaError):
    """The replica refuses new requests because it sleeps or is about to."""


class ReplicaDiedError(ReplicaError):
    """The replica's process is gone, or a call to it broke its deadline."""


class NoReplicaError(SwingshiftError):
    """No replica can generate and none is about to become available."""


class TrainerError(SwingshiftError):
    """The train worker failed."""


class TransitionError(SwingshiftError):
    """A lending transition could neither be completed nor rolled back."""


class TooManyFailuresError(SwingshiftError):
    """More sample groups failed than ``async_training.max_failed_ratio`` allows."""


class CheckpointError(SwingshiftError):
    """A checkpoint cannot be written or read."""


class StalledError(SwingshiftError):
    """Nothing has moved for ``async_training.watchdog_timeout_s``; the message says who waits for what."""


class DeadlockError(SwingshiftError):
    """Nothing is scheduled and somebody still waits; the message says who waits for what."""
