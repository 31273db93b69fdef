"""PyTorch, by hand: the graph of g_y is made once, and every Hessian product is one backward pass through it."""

import torch
from common import Arrays, Sizes, serve
from in_torch import InTorch


class Peer(InTorch):
    def __init__(self, sizes: Sizes, given: Arrays):
        super().__init__(sizes, given)
        self.version = f"PyTorch {torch.__version__}"

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.descend(y, x).requires_grad_()
        x = x.detach().requires_grad_()
        of_upper = torch.autograd.grad(self.upper(y), y)[0]
        slope = torch.autograd.grad(self.lower(y, x), y, create_graph=True)[0]
        v = self.solve(slope, y, of_upper)
        return -torch.autograd.grad(slope, x, v)[0], y.detach()

    def solve(self, slope: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """CG from zero."""
        v, r, p = torch.zeros_like(b), b, b
        size = (r * r).sum()
        for _ in range(self.sizes["cg_steps"]):
            product = torch.autograd.grad(slope, y, p, retain_graph=True)[0]
            # Where nothing is left to solve there is no direction: x / 0 is then no step.
            length = torch.nan_to_num(size / (p * product).sum(), posinf=0.0)
            v, r = v + length * p, r - length * product
            last, size = size, (r * r).sum()
            p = r + torch.nan_to_num(size / last, posinf=0.0) * p
        return v


serve(Peer)
