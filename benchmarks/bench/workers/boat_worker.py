"""BOAT: its `conjugate_gradient`, called as its operator "CG" calls it."""

from importlib.metadata import version

import torch
from common import Arrays, Sizes, serve
from in_torch import InTorch


class Peer(InTorch):
    def __init__(self, sizes: Sizes, given: Arrays):
        from boat_torch.utils.op_utils import conjugate_gradient

        super().__init__(sizes, given)
        self.version, self.conjugate_gradient = f"BOAT {version('boat-torch')}", conjugate_gradient

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, x = self.descend(y, x).requires_grad_(), x.detach().requires_grad_()

        def gradient_step(parameters: list[torch.Tensor], loss: torch.Tensor) -> list[torch.Tensor]:
            slopes = torch.autograd.grad(loss, parameters, create_graph=True)
            return [p - self.sizes["step_size"] * s for p, s in zip(parameters, slopes, strict=True)]

        losses, count = (self.upper(y), self.lower(y, x)), self.sizes["cg_steps"]
        return self.conjugate_gradient([y], [x], *losses, count, gradient_step, tol=0.0)[0], y.detach()


serve(Peer)
