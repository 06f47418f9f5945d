"""ATENT: adversarial training with entropy."""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from itertools import islice
from typing import Any

import torch
from pydantic import model_validator
from pydantic_core import ArgsKwargs
from torch import Generator, Tensor, nn

from atent.ascent import Chain, ascend, keep_own_gradient, last, noise_for, solved_pull, step_size
from atent.defenses.protocols import Search, Term, Terms
from atent.inputs import checked
from atent.leak import leaky_gradients
from atent.losses import cross_entropy
from atent.methods import Count, Fraction, Scale, Size, Tolerance, method
from atent.network import borrowed
from atent.threat import Threat

_EQUAL = {"steps": 10, "reach": 2.0, "decay": 1.0}  # what fields of a chain with equal steps go with


@method
class Atent(Search):
    """Cross-entropy averaged over a Langevin chain that favours high loss near x.

        loss = sum_k share (1 - share)^(K-k) CE(f(x'_k), y)                                    (mu of Algorithms 1, 2)
        x'_{k+1} = x'_k + step (d(grad CE) + pull (x - x'_k)) + s N(0, I)

    `temperature` T sets s: T step in linf, T step / sqrt(d) in l2, so that it compares the noise with the step; with
    `direction="raw"` sqrt(2 step T). `noise` is the paper's unit, s = sqrt(2 step) noise; one of the two is 0.
    In the paper's letters: steps K, step eta', noise epsilon, pull gamma, share alpha. With the raw direction and no
    projection the chain's law tends to exp((CE(x') - pull/2 |x' - x|^2) / T), for T = 1 the Gibbs law of Assumption 1,
    and the mean gradient over it is that of the free energy (docs/atent.md). "steepest" samples no such law.

    By default the chain is cooled: five steps of 2 to .25 radii, each with noise of half of its size, projected; the
    loss is at the last sample. These defaults were among the best for their passes; two seeds show no difference that
    the noise makes (docs/entropy.md). Who names a `step`, `reach`, `noise`, `sigma` or a solved or adaptive pull, and
    no `decay`, has equal steps: ten, of reach 2 in all, where not named. The paper's settings are noise 1e-3 and share
    .9; at linf project "last", so that samples before the last lie outside the ball; at l2 pull "auto" and project
    "never".

    Jagatap et al. 2020, https://arxiv.org/abs/2008.12338.
    Differs from the paper in: the gradient is per example and normalized in the threat's norm (`direction="steepest"`,
    as in the authors' runs; "raw" is the paper's drift); the radius comes from the threat, so linf needs no gamma, and
    `pull="auto"` solves for the l2 gamma that reaches it; the projection is of the whole displacement x'_K - x, not of
    the last increment; pixels stay in the box; samples whose share is at most `tolerance` carry no weight gradient
    (0 keeps all). Differs from the authors' code in: the pull is multiplied by the step (their gamma = step * pull);
    `mode` (theirs is "train", which updates BatchNorm statistics and applies dropout in the chain).

    For smoothing, set `sigma`: the noise is then chosen so that K steps accumulate to the standard deviation sigma, and
    points may leave the pixel box (the paper's sigma is the standard deviation of a single step).
    """

    _: KW_ONLY
    steps: Count = 5
    reach: Size = 4.6
    decay: Fraction = 0.125
    temperature: Scale = 0.5
    noise: Scale = 0.0
    share: Fraction = 1.0
    tolerance: Tolerance = 1e-3
    sigma: Scale = 0.0

    @model_validator(mode="before")
    @classmethod
    def _fitting(cls, given: ArgsKwargs) -> ArgsKwargs:
        return ArgsKwargs(given.args, cls.filled(given.kwargs or {}))

    @staticmethod
    def one_noise(fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields; who names a temperature has no other noise, and who names another noise has no temperature."""
        if "temperature" in fields:
            return {"noise": 0.0, **fields}
        return {"temperature": 0.0, **fields} if "noise" in fields or fields.get("sigma") else dict(fields)

    @staticmethod
    def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
        """All fields that are named, and those that they decide.

        One kind of noise excludes the other. Fields of a chain with equal steps bring its other defaults, so that
        recipes from before `decay` that name their `noise`, and all stored runs, keep their chain.
        """
        named = {"step", "reach", "noise"} & fields.keys() or fields.get("sigma") or fields.get("pull_rate")
        equal = "decay" not in fields and (named or fields.get("pull") == "auto")
        return {**(_EQUAL if equal else {}), **Atent.one_noise(fields)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma and self.pull_rate:
            raise ValueError(f"pull_rate {self.pull_rate:g} and sigma {self.sigma:g}: radii would include the noise")
        if self.sigma and self.project != "never":
            raise ValueError(f"sigma {self.sigma:g} is cut off by project {self.project!r}; it must be 'never'")
        if self.sigma and self.decay < 1:
            raise ValueError(f"decay {self.decay:g} and sigma {self.sigma:g}; allowed: a decay of 1, equal steps")
        if self.tolerance >= self.share:
            raise ValueError(
                f"tolerance {self.tolerance:g} leaves no sample of share {self.share:g}; it must be smaller"
            )
        for name in ("noise", "sigma"):
            if self.temperature and (value := getattr(self, name)):
                raise ValueError(
                    f"temperature {self.temperature:g} and {name} {value:g} both set the noise; {name} must be 0"
                )

    def shares(self) -> list[float]:
        """The weights of x'_1 .. x'_K in the moving average mu <- (1 - share) mu + share mu_k."""
        return [self.share * (1 - self.share) ** (self.steps - k) for k in range(1, self.steps + 1)]

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:
        """As `loss_at` at the points of `find`; one pass serves the loss at x'_k and the next step of the chain."""
        with checked(model, x, y, threat) as threat:
            # Only if both use the same network mode, the same loss and the same derivative of ReLU.
            own_loss = not self.label_smoothing and not self.leak
            same_network = model.training == (self.mode == "train") and threat.eps > 0 and own_loss
            for k, share, point in self._samples(model, x, y, threat, generator):
                shared = same_network and k < self.steps
                point.requires_grad_(shared)
                logits = model(point)
                loss = cross_entropy(logits, y, self.label_smoothing)
                if shared:
                    keep_own_gradient(point, loss)
                yield Term(share * loss, logits, point.detach())

    def find(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator) -> Tensor:
        return torch.stack([point for _, _, point in self._samples(model, x, y, threat, generator)])

    def loss_at(self, model: nn.Module, x: Tensor, y: Tensor, found: Tensor) -> Terms:  # noqa: ARG002
        shares = [share for share in self.shares() if share > self.tolerance]
        for share, point in zip(shares, found, strict=True):
            logits = model(point)
            yield Term(share * cross_entropy(logits, y, self.label_smoothing), logits, point)

    def _samples(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: Generator
    ) -> Iterator[tuple[int, float, Tensor]]:
        """k, share and point of each sample that is trained on."""
        settings: Chain = {"noise": self.noise, **self.chain()}
        if self.sigma:
            size = step_size(threat.eps, self.steps, self.step, self.reach)
            pull = solved_pull(self.pull, threat, self.steps, self.step, self.reach)
            settings |= {"pull": pull, "noise": noise_for(self.sigma, pull, self.steps, size)}
            threat = threat.unboxed()
        points = ascend(
            lambda point: cross_entropy(model(point), y), x, threat, steps=self.steps, generator=generator, **settings
        )
        carried = [share for share in self.shares() if share > self.tolerance]  # those of the last samples
        before = self.steps - len(carried)
        for k, share in enumerate(carried, start=before + 1):
            with borrowed(model, self.mode == "train"), leaky_gradients(self.leak):
                point = last(islice(points, 1 if k > before + 1 else k))
            yield k, share, point
