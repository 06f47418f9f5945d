"""Entropy-SGD: an optimizer that looks around in weight space before it steps."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class EntropySGD(torch.optim.Optimizer):
    """Descend the local entropy: `steps` Langevin steps on the weights around w, then w moves towards their average.

        w'_{k+1} = w'_k - step (grad L(w'_k) + gamma (w'_k - w)) + sqrt(2 step) noise N(0, I),   w'_0 = w
        mu <- (1 - share) mu + share w'_{k+1},                                                   mu_0 = w
        w <- w - lr (w - mu)

    gamma (w - mean of w') is the gradient of -log of the integral of exp(-L(w') - gamma/2 |w - w'|^2), so wide valleys
    win. gamma grows by the factor 1 + `growth` with each step of w. `step(closure)` calls the closure `steps` times; it
    must zero the gradients, compute the loss at the present weights, back-propagate it and return it. If it raises,
    the weights are as before.

    Chaudhari et al. 2017, https://arxiv.org/abs/1611.01838. Differs from the paper's Algorithm ("Entropy SGD" of
    Jagatap et al.) in: the outer step is lr (w - mu) with lr near 1, not lr gamma (w - mu), which hardly moves. Differs
    from Chaudhari et al. in: the Langevin steps see one batch, not a new one each; no momentum in them.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1.0,
        *,
        steps: int = 5,
        step: float = 0.1,
        gamma: float = 1e-3,
        growth: float = 0.0,
        noise: float = 1e-4,
        share: float = 0.75,
        weight_decay: float = 0.0,
    ) -> None:
        self.steps = steps
        fields = {"step": step, "gamma": gamma, "growth": growth, "noise": noise, "share": share}
        super().__init__(params, {"lr": lr, **fields, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]  # it cannot do without a closure
        moved = [(p, group) for group in self.param_groups for p in group["params"] if p.requires_grad]
        centers = [p.clone() for p, _ in moved]
        averages = [p.clone() for p, _ in moved]
        try:
            for _ in range(self.steps):
                with torch.enable_grad():
                    loss = closure()
                for (p, group), center, average in zip(moved, centers, averages, strict=True):
                    self._langevin(p, group, center)
                    average.lerp_(p, group["share"])
        except BaseException:
            for (p, _), center in zip(moved, centers, strict=True):
                p.copy_(center)
            raise
        for (p, group), center, average in zip(moved, centers, averages, strict=True):
            p.copy_(torch.lerp(center, average, group["lr"]))
            self._age(p).add_(1)
        return loss

    def _langevin(self, p: Tensor, group: dict[str, Any], center: Tensor) -> None:
        gamma = group["gamma"] * (1 + group["growth"]) ** float(self._age(p))
        drift = gamma * (p - center) + group["weight_decay"] * p
        if p.grad is not None:
            drift += p.grad
        p.sub_(group["step"] * drift)
        if group["noise"]:
            p.add_(torch.randn_like(p), alpha=(2 * group["step"]) ** 0.5 * group["noise"])

    def _age(self, p: Tensor) -> Tensor:
        """How many steps the weight has made; a tensor, so that checkpoints keep it."""
        age: Tensor = self.state[p].setdefault("age", torch.zeros((), dtype=torch.float32))
        return age
