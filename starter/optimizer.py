"""Muon for the matrices of the layers, Adam for the embedding and the norms, and the learning-rate schedule."""

import torch
from torch import Tensor, nn

WARMUP_STEPS = 60
DECAY_SHARE = 0.35


def schedule(step: int, n_steps: int) -> float:
    """Warm-up, constant, then linear to zero over the last `DECAY_SHARE` of the run (WSD, Hu et al., 2024)."""
    left = (n_steps - step) / (DECAY_SHARE * n_steps)
    return min(1.0, (step + 1) / WARMUP_STEPS, max(left, 0.0))


def orthogonalized(update: Tensor) -> Tensor:
    """Newton-Schulz iteration of Muon (Jordan et al., 2024) over a stack of matrices, in bfloat16."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are orthogonalized; one group holds the matrices of one shape, so that they share the work."""

    def __init__(self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        shapes = {matrix.shape for matrix in matrices}
        groups = [{"params": [matrix for matrix in matrices if matrix.shape == shape]} for shape in sorted(shapes)]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            matrices, momentum = group["params"], group["momentum"]
            gradients = torch.stack([matrix.grad for matrix in matrices])
            state = self.state[matrices[0]]
            average = state.setdefault("average", torch.zeros_like(gradients))
            average.lerp_(gradients, 1 - momentum)
            update = orthogonalized(gradients.lerp(average, momentum))
            scale = group["lr"] * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            for matrix, change in zip(matrices, update):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-scale)


def optimizers_for(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [
        parameter for name, parameter in model.named_parameters() if parameter.ndim == 2 and "embed" not in name
    ]
    embedding = [parameter for name, parameter in model.named_parameters() if "embed" in name]
    norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    adam = torch.optim.Adam(
        [{"params": embedding, "lr": 3e-3}, {"params": norms, "lr": 3e-3}], betas=(0.9, 0.98), eps=1e-10
    )
    return [Muon(matrices, lr=0.02, weight_decay=0.01), adam]
