"""AdamW over one flat gradient buffer, with linear warm-up, clipping and host offload.

All gradients live in one float32 buffer, so that ranks sum them with a single all-reduce and clipping takes
one norm. Models in a lower precision train through float32 master weights, or small updates would round away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swingshift.config.schema import OptimConfig

STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")


class FlatAdamW:
    """One optimizer step is ``zero_grad``, (backward, ``collect``)*, ``reduce``, ``step``."""

    def __init__(self, params: Mapping[str, nn.Parameter], config: OptimConfig) -> None:
        self._params = dict(params)
        self._config = config
        self._masters = {n: p if p.dtype == torch.float32 else _master(p) for n, p in self._params.items()}
        self._low = [n for n, p in self._params.items() if self._masters[n] is not p]
        self._adam = torch.optim.AdamW(
            list(self._masters.values()),
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self._flat: Tensor | None = None
        self.num_steps = 0

    # --- gradients ---

    def zero_grad(self) -> None:
        """Empty gradients, allocated again if they were freed. Slot -1 carries the loss along."""
        if self._flat is None:
            self._allocate()
        assert self._flat is not None
        self._flat.zero_()

    def collect(self, loss: Tensor) -> None:
        """After each backward pass: add what autograd has not put into the buffer itself, and the loss."""
        assert self._flat is not None
        for name in self._low:
            param, master = self._params[name], self._masters[name]
            if param.grad is not None:
                assert master.grad is not None
                master.grad.add_(param.grad)
                param.grad = None
        self._flat[-1] += loss.detach()

    def reduce(self, group: dist.ProcessGroup | None) -> None:
        """Sum gradients and loss over the ranks."""
        assert self._flat is not None
        dist.all_reduce(self._flat, group=group)

    def grad_norm(self) -> float:
        assert self._flat is not None
        return float(torch.linalg.vector_norm(self._flat[:-1]))

    def loss(self) -> float:
        """The mini-batch's loss, over all ranks once reduced."""
        assert self._flat is not None
        return float(self._flat[-1])

    def free_gradients(self) -> None:
        for param in (*self._params.values(), *self._masters.values()):
            param.grad = None
        self._flat = None

    def _allocate(self) -> None:
        masters = list(self._masters.values())
        self._flat = torch.zeros(sum(m.numel() for m in masters) + 1, device=masters[0].device)
        offset = 0
        for master in masters:
            master.grad = self._flat[offset : offset + master.numel()].view_as(master)
            offset += master.numel()

    # --- steps ---

    @property
    def lr(self) -> float:
        """Learning rate of the next step: linear warm-up that ends at ``optim.lr``."""
        warmup = self._config.lr_warmup_steps
        return self._config.lr * min(1.0, (self.num_steps + 1) / warmup) if warmup else self._config.lr

    def step(self, grad_norm: float, max_norm: float) -> None:
        assert self._flat is not None
        if grad_norm > max_norm:
            self._flat.mul_(max_norm / (grad_norm + 1e-6))
        for param_group in self._adam.param_groups:
            param_group["lr"] = self.lr
        self._adam.step()
        with torch.no_grad():
            for name in self._low:
                self._params[name].copy_(self._masters[name])
        self.num_steps += 1

    # --- state ---

    def state_tensors(self) -> dict[str, Tensor]:
        """Optimizer state and master weights by ``kind.parameter name`` (empty before the first step)."""
        tensors = {f"master.{n}": self._masters[n].detach() for n in self._low}
        for name, master in self._masters.items():
            for key, value in self._adam.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def expected_tensors(self, num_steps: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of ``state_tensors`` after ``num_steps`` steps."""
        shapes = {f"master.{n}": tuple(self._masters[n].shape) for n in self._low}
        if num_steps:
            for name, master in self._masters.items():
                for key in STATE_KEYS:
                    shapes[f"{key}.{name}"] = () if key == "step" else tuple(master.shape)
        return shapes

    def load_state_tensors(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Take over what ``state_tensors`` gave; names and shapes must be those of ``expected_tensors``."""
        self.num_steps = num_steps
        self._adam.state.clear()
        for name, master in self._masters.items():
            if name in self._low:
                master.data.copy_(tensors[f"master.{name}"])
            if num_steps:
                self._adam.state[master] = {
                    key: tensors[f"{key}.{name}"].to(master.device, copy=True) for key in STATE_KEYS
                }

    def offload(self) -> None:
        """Move optimizer state and master weights to host memory, unless they are there already."""
        self._move(torch.device("cpu"))

    def onload(self) -> None:
        self._move(next(iter(self._params.values())).device)

    def _move(self, device: torch.device) -> None:
        for name in self._low:
            _move_data([self._masters[name]], device)
        for state in self._adam.state.values():
            _move_state(state, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _master(param: nn.Parameter) -> Tensor:
    return param.detach().float().requires_grad_()


def _move_data(tensors: Iterable[Tensor], device: torch.device) -> None:
    for tensor in tensors:
        tensor.data = _moved(tensor.data, device)


def _move_state(state: dict[str, Any], device: torch.device) -> None:
    for key, value in state.items():
        state[key] = _moved(value, device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device == device:
        return tensor
    if device.type == "cpu":
        # Pinned memory makes both directions several times faster.
        return torch.empty_like(tensor, device=device, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)
