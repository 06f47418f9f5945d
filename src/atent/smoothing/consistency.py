"""The loss of noisy copies of an image whose predictions should agree."""

from torch import Tensor

from atent.losses import cross_entropy, divergence
from atent.smoothing.noise import log_mean


def consistent(
    logits: Tensor, y: Tensor, draws: int, beta: float, eta: float, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The loss of each image from the logits of its `noisy_copies`, and the log of its mean prediction:

    (1/m) sum_i [ CE(f_i, y) + beta KL(q || p_i) ] + eta H(q),   p_i = softmax(f_i),   q = (1/m) sum_i p_i
    """
    log_q = log_mean(logits, draws)
    each = cross_entropy(logits, y.repeat(draws), label_smoothing)
    if beta:
        each = each + beta * divergence(logits, of=log_q.repeat(draws, 1))
    loss = each.unflatten(0, (draws, -1)).mean(0)
    return (loss - eta * (log_q.exp() * log_q).sum(1) if eta else loss), log_q
