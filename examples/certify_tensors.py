"""Certify a network that was trained elsewhere, on tensors in memory, by randomized smoothing."""

from elsewhere import model, x_test, y_test

import atent

result = atent.certify(model, x_test[:60], y_test[:60], sigma=0.25, radii=[0.25, 0.5], n=1000)
print(result)  # the verdict: the accuracy that no perturbation within each radius can lower
for radius, rate in result.certified.items():
    print(f"l2 radius {radius}: {rate.value:.1%}, 95 % interval [{rate.low:.1%}, {rate.high:.1%}]")
print(f"abstained: {result.abstained:.1%}; {result.passes}")
largest = max(result.rows, key=lambda row: row["radius"])
print(f"image {largest['index']} has the largest radius, {largest['radius']}")
