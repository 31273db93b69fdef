"""Betty: its `cg`, called as its engine calls it."""

from importlib.metadata import version
from types import SimpleNamespace

import torch
from common import Arrays, Sizes, serve
from in_torch import InTorch


class Peer(InTorch):
    def __init__(self, sizes: Sizes, given: Arrays):
        from betty.hypergradient.cg import cg

        super().__init__(sizes, given)
        self.version, self.cg = f"Betty {version('betty-ml')}", cg

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, x = self.descend(y, x).requires_grad_(), x.detach().requires_grad_()
        level = SimpleNamespace(
            paths=[],
            config=SimpleNamespace(cg_iterations=self.sizes["cg_steps"], cg_alpha=1.0),
            cur_batch=None,
            training_step_exec=lambda batch: self.lower(y, x),
            trainable_parameters=lambda: [y],
            parameters=lambda: [y],
        )
        of_upper = torch.autograd.grad(self.upper(y), y)
        found = self.cg(of_upper, level, SimpleNamespace(trainable_parameters=lambda: [x]))
        return found[0], y.detach()


serve(Peer)
