import torch

from atent.losses import cross_entropy, margin


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
