"""The weights with which a cycle began, kept once in host memory: the proximal policy of decoupled PPO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from swingshift.core.types import WeightVersion


class ProximalWeights:
    """One copy of ``params`` at the start of each cycle; a cycle is everything trained under one weight version.

    The copy is made when the first collection of a cycle asks (its current weights still are those of the start),
    into the same buffers every time. ``keep`` false: cycles have one collection, so nothing is ever copied.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, keep: bool = True) -> None:
        self._params = list(params)
        self._keep = keep
        self._host: list[Tensor] = []
        self._version: WeightVersion | None = None

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """The copy in host memory, one tensor per parameter; empty before the first one."""
        return tuple(self._host)

    def forget(self) -> None:
        """The next collection begins a cycle, whatever its version; the buffers stay for its copy."""
        self._version = None

    @contextmanager
    def in_place(self, version: WeightVersion) -> Iterator[None]:
        """Inside, the parameters hold the weights with which ``version`` began; afterwards their own, bit by bit.

        Values are exchanged in place, so that whoever shares the parameters' memory still does.
        """
        if version != self._version:
            yield
            if self._keep:
                self._copy()
            self._version = version
            return
        assert self._keep, f"a second collection of version {version}, but cycles were said to have one"
        # Allocated before anything moves: running out of memory later must not leave the wrong weights in place.
        spare = self._spare()
        self._exchange(spare)
        try:
            yield
        finally:
            self._exchange(spare)

    @torch.no_grad()
    def _copy(self) -> None:
        if not self._host:
            self._host = [_host_buffer(p) for p in self._params]
        for host, param in zip(self._host, self._params, strict=True):
            host.copy_(param, non_blocking=True)

    @torch.no_grad()
    def _exchange(self, spare: Tensor) -> None:
        """Swap the copy and the parameters, tensor by tensor, by way of ``spare``.

        On CUDA all copies are queued on one stream, so each finds what the one before it has left.
        """
        for host, param in zip(self._host, self._params, strict=True):
            current = spare[: param.nbytes].view(param.dtype).view(param.shape)
            current.copy_(param)
            param.copy_(host, non_blocking=True)
            host.copy_(current, non_blocking=True)

    def _spare(self) -> Tensor:
        """Room for the largest parameter, on its device."""
        return torch.empty(max(p.nbytes for p in self._params), dtype=torch.uint8, device=self._params[0].device)


def _host_buffer(param: Tensor) -> Tensor:
    # Pinned memory makes both directions several times faster.
    return torch.empty_like(param, device="cpu", pin_memory=param.device.type == "cuda")
