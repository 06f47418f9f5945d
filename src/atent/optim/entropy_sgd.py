"""Entropy-SGD: an optimizer that samples weights around the current ones before each step."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from atent.errors import UserError
from atent.randomness import derive


class EntropySGD(torch.optim.Optimizer):
    """Descend the local entropy: `steps` Langevin steps on the weights around w, then w moves towards their average.

        w'_{k+1} = w'_k - step (grad L(w'_k) + gamma (w'_k - w)) + sqrt(2 step) noise N(0, I),   w'_0 = w
        mu <- (1 - share) mu + share w'_{k+1},                                                   mu_0 = w
        w <- w - lr (w - mu)

    gamma (w - mean of w') is the gradient of -log of the integral of exp(-L(w') - gamma/2 |w - w'|^2), so wide
    minima are preferred. gamma grows by the factor 1 + `growth` with each step of w, up to 1 / step. `step(closure)`
    calls the closure `steps` times; it must zero the gradients, compute the loss at the current weights, back-propagate
    it and return it. If it raises, the weights are restored. The noise is drawn from `generator`, by default a new one
    with a fixed seed; `train_step` sets it to that of the batch.

    Chaudhari et al. 2017, https://arxiv.org/abs/1611.01838. Differs from the paper's Algorithm ("Entropy SGD" of
    Jagatap et al.) in: the outer step is lr (w - mu) with lr near 1, not lr gamma (w - mu), a very small step. Differs
    from Chaudhari et al. in: the Langevin steps use one batch, not a new one each; no momentum in them.
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
        generator: torch.Generator | None = None,
    ) -> None:
        fields = {"step": step, "gamma": gamma, "growth": growth, "noise": noise, "share": share}
        fields |= {"lr": lr, "weight_decay": weight_decay}
        if steps < 1:
            raise UserError(f"Entropy-SGD: steps {steps}; allowed: 1 or more")
        for name, value in fields.items():
            if not (math.isfinite(value) and value >= 0) or (name == "step" and value == 0):
                allowed = "a finite number above 0" if name == "step" else "a finite number >= 0"
                raise UserError(f"Entropy-SGD: {name} {value}; allowed: {allowed}")
        super().__init__(params, {"steps": steps, **fields})
        device = next(p.device for group in self.param_groups for p in group["params"])
        self.generator = generator or derive(0, "entropy-sgd", device=device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]  # it needs a closure
        moved = [(p, group) for group in self.param_groups for p in group["params"] if p.requires_grad]
        centers = [p.clone() for p, _ in moved]
        averages = [p.clone() for p, _ in moved]
        pulls = [_pull(group, float(self._age(p))) for p, group in moved]
        try:
            for _ in range(self.param_groups[0]["steps"]):
                with torch.enable_grad():
                    loss = closure()
                for (p, group), center, average, pull in zip(moved, centers, averages, pulls, strict=True):
                    _langevin(p, group, center, pull, self.generator)
                    average.lerp_(p, group["share"])
        except BaseException:
            for (p, _), center in zip(moved, centers, strict=True):
                p.copy_(center)
            raise
        for (p, group), center, average in zip(moved, centers, averages, strict=True):
            p.copy_(torch.lerp(center, average, group["lr"]))
            self._age(p).add_(1)
        return loss

    def _age(self, p: Tensor) -> Tensor:
        """The number of steps of this parameter; a tensor, so that checkpoints contain it."""
        age: Tensor = self.state[p].setdefault("age", torch.zeros((), dtype=torch.float32))
        return age


def _pull(group: dict[str, Any], age: float) -> float:
    """gamma after its growth, at most 1/step: there a Langevin step returns to w; above 2/step the chain diverges."""
    gamma, most = group["gamma"], 1 / group["step"]
    return float(gamma * math.exp(min(age * math.log1p(group["growth"]), math.log(most / gamma)))) if gamma else 0.0


def _langevin(p: Tensor, group: dict[str, Any], center: Tensor, pull: float, generator: torch.Generator) -> None:
    drift = (p - center).mul_(pull)
    if group["weight_decay"]:
        drift.add_(p, alpha=group["weight_decay"])
    if p.grad is not None:
        drift.add_(p.grad)
    p.sub_(drift.mul_(group["step"]))
    if group["noise"]:
        noise = torch.empty_like(p).normal_(generator=generator)
        p.add_(noise, alpha=(2 * group["step"]) ** 0.5 * group["noise"])
