import pytest
import torch

from atent.errors import UserError
from atent.losses import cross_entropy, dlr, margin


def test_cross_entropy_is_per_example_and_finite_for_huge_logits() -> None:
    logits = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([1, 0]))
    torch.testing.assert_close(loss, torch.tensor([2e4, 0.6931472]))
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_margin_is_positive_exactly_where_the_answer_is_wrong() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    assert margin(logits, torch.tensor([0, 1])).tolist() == [-1.0, 1.0]


def test_dlr_is_the_papers_formula() -> None:
    """-(z_y - max_{i != y} z_i) / (z_pi1 - z_pi3), pi the order of falling logits."""
    logits = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(50) % 6
    expected = []
    for z, label in zip(logits.tolist(), y.tolist(), strict=True):
        falling = sorted(z, reverse=True)
        wrong = max(value for k, value in enumerate(z) if k != label)
        expected.append(-(z[label] - wrong) / (falling[0] - falling[2]))
    torch.testing.assert_close(dlr(logits, y), torch.tensor(expected).double())
    torch.testing.assert_close(dlr(5 * logits + 3, y), dlr(logits, y))


def test_dlr_is_finite_for_equal_logits_and_refuses_two_classes() -> None:
    logits = torch.zeros(2, 4, requires_grad=True)
    dlr(logits, torch.tensor([0, 1])).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    with pytest.raises(UserError, match="has 2 classes"):
        dlr(torch.zeros(1, 2), torch.tensor([0]))
