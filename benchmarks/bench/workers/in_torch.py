"""The formulas and the outer loop in PyTorch, for all peers that are written with it."""

from abc import abstractmethod

import numpy as np
import torch
from common import Arrays, Sizes, outputs, prox


class InTorch:
    version: str

    def __init__(self, sizes: Sizes, given: Arrays):
        self.sizes = sizes
        self.device = "cuda" if sizes.get("gpu") and torch.cuda.is_available() else "cpu"
        self.data = {key: torch.as_tensor(value, device=self.device) for key, value in given.items()}
        for part in ("rows", "held_out"):
            if sizes["loss"] == "softmax":
                self.data[f"{part}_targets"] = self.data[f"{part}_targets"].long()

    @abstractmethod
    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The hypergradient at x, after the lower steps from y; and where they led."""

    def y0(self) -> torch.Tensor:
        return torch.zeros((outputs(self.sizes), self.sizes["features"]), device=self.device)

    def losses(self, y: torch.Tensor, part: str) -> torch.Tensor:
        z, t = self.data[part] @ y.T, self.data[f"{part}_targets"]
        if self.sizes["loss"] == "softmax":
            return torch.nn.functional.cross_entropy(z, t, reduction="none")
        if self.sizes["loss"] == "logistic":
            return torch.nn.functional.binary_cross_entropy_with_logits(z[:, 0], t, reduction="none")
        return (z[:, 0] - t) ** 2 / 2

    def upper(self, y: torch.Tensor) -> torch.Tensor:
        return self.losses(y, "held_out").mean()

    def lower(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.sizes["x_is"] == "weights":
            fit = (torch.sigmoid(x) * self.losses(y, "rows")).mean()
            return fit + 0.5 * self.sizes["ridge"] * (y**2).sum()
        return self.losses(y, "rows").mean() + 0.5 * (torch.exp(x) * y**2).sum()

    def descend(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The lower steps."""
        x = x.detach()
        for _ in range(self.sizes["lower_steps"]):
            y = y.detach().requires_grad_()
            with torch.enable_grad():  # peers call this where gradients are switched off
                slope = torch.autograd.grad(self.lower(y, x), y)[0]
            y = y - self.sizes["step_size"] * slope
        return y.detach()

    def steps(self, x: np.ndarray, count: int, outer_step: float) -> np.ndarray:
        at, y = torch.as_tensor(x, device=self.device), self.y0()
        for _ in range(count):
            gradient, y = self.gradient(at, y)
            at = prox(torch, at - outer_step * gradient, outer_step, self.sizes)
        return at.cpu().numpy()

    def hypergradient(self, x: np.ndarray) -> np.ndarray:
        return self.gradient(torch.as_tensor(x, device=self.device), self.y0())[0].cpu().numpy()
