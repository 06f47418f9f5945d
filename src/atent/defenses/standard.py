"""Training on the images as they are."""

from typing import ClassVar

from torch import Generator, Tensor, nn

from atent.defenses.protocols import Term, Terms
from atent.inputs import checked
from atent.losses import cross_entropy
from atent.methods import Choice, Tolerance, method
from atent.threat import Threat


@method
class Standard:
    """No defense: cross-entropy at x. The baseline for clean accuracy.

    loss = CE(f(x), y)

    Its robust accuracy is highest before it has learned anything, so clean accuracy selects the best epoch.
    """

    chosen_by: ClassVar[Choice] = "clean"
    label_smoothing: Tolerance = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: Generator) -> Terms:  # noqa: ARG002
        with checked(model, x, y, threat):
            logits = model(x)
            yield Term(cross_entropy(logits, y, self.label_smoothing), logits, x)
