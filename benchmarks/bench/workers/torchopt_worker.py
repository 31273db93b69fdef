"""TorchOpt: `custom_root` around the lower steps, and its CG."""

import warnings

import torch
from common import Arrays, Sizes, serve
from in_torch import InTorch


class Peer(InTorch):
    def __init__(self, sizes: Sizes, given: Arrays):
        warnings.simplefilter("ignore")  # of functorch, which it still uses
        import torchopt

        super().__init__(sizes, given)
        self.version = f"TorchOpt {torchopt.__version__}"
        solve = torchopt.linear_solve.solve_cg(maxiter=sizes["cg_steps"], rtol=0.0, atol=0.0)
        condition = torch.func.grad(self.lower, argnums=0)
        self.solve = torchopt.diff.implicit.custom_root(condition, argnums=1, solve=solve)(self.descend)

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = self.solve(y, x)
        return torch.autograd.grad(self.upper(y), x)[0], y.detach()


serve(Peer)
