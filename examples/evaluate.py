"""Evaluate a network that was trained elsewhere, on tensors in memory, with the attacks to report."""

from elsewhere import model, x_test, y_test

import atent

result = atent.evaluate(model, x_test, y_test, "linf:0.2", suite="strong")
print(result)  # the verdict: accuracies, interval, and whether the checks found anything
print(f"robust {result.robust:.3f}, 95 % interval {result.robust_interval}")
print(f"warnings: {result.warnings}; {result.passes}")
for title, rows in result.rows.items():
    broken = [row["index"] for row in rows if not row["robust"]]
    print(f"{title}: the first images that it broke are {broken[:5]}")
# result.save("runs/mine") makes a folder for `atent show runs/mine`; in a notebook, `result` is a table.
