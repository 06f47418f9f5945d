import pytest
import torch
from torch import nn

from atent.network import borrowed
from toys import small_network


def flags(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()] + [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("training", [False, True])
def test_every_flag_comes_back_even_after_an_error(training: bool) -> None:
    model = small_network().train()
    model[1].eval()  # a frozen BatchNorm in a training network
    next(model.parameters()).requires_grad_(False)
    before = flags(model)
    with borrowed(model, training):
        assert [module.training for module in model.modules()] == (before[:7] if training else [False] * 7)
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert flags(model) == before
    with pytest.raises(RuntimeError), borrowed(model, training):
        model(torch.zeros(1, 2, 6, 6))  # one channel too many
    assert flags(model) == before
