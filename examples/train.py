"""Train a network that you have in hand to be robust, on tensors in memory; the same call resumes."""

import tempfile

from elsewhere import model, x, x_test, y, y_test

import atent

before = atent.evaluate(model, x_test, y_test, "linf:0.1")
with tempfile.TemporaryDirectory() as folder:
    settings = {"epochs": 2, "defense": "trades", "defense.steps": 5, "optimizer": "adamw"}
    trained = atent.train(model, x, y, "linf:0.1", out=folder, settings=settings)
    print(trained)  # accuracies on held-out images; `model` now has the weights of the best epoch
after = atent.evaluate(trained.network, x_test, y_test, "linf:0.1")
print(f"before: {before}\nafter:  {after}")
