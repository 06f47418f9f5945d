"""Named lists of attacks, so that one word says how a network was tried."""

from typing import Any

from atent.errors import unknown
from atent.threat import Threat

Settings = dict[str, Any]

_QUICK: list[Settings] = [{"name": "pgd", "steps": 20}, {"name": "pgd", "steps": 20, "loss": "margin"}]
_RESTARTED: Settings = {"name": "pgd", "steps": 40, "restarts": 5}
# Steps four times as large find other points: on held-out images of the TRADES authors' network they break one more of
# a hundred (LOG.md, 2026-11-16), so the losses differ in their steps, too.
_STRONG: list[Settings] = [
    _RESTARTED,
    *({**_RESTARTED, "reach": 10.0, "loss": loss} for loss in ("cross-entropy", "margin", "dlr")),
    {"name": "autoattack"},
]

# quick: a first look, some seconds for a small network. strong: what to report. paper: the ATENT paper's own attacks,
# Tables 1 to 3 and 6, also where they are weak; under linf its PGD-20 is added, for the radii that the paper uses,
# with the step that it names, which does not cross the ball.
SUITES: dict[str, dict[str, list[Settings]]] = {
    "quick": {"linf": _QUICK, "l2": _QUICK},
    "paper": {
        "linf": [
            {"name": "fgsm"},
            {"name": "pgd", "steps": 20},
            {"name": "pgd", "steps": 40},
            {"name": "cw-linf"},
            {"name": "deepfool"},
            {"name": "atent-chain", "steps": 20},
        ],
        "l2": [{"name": "pgd", "steps": 40, "restarts": 10}, {"name": "cw-l2"}],
    },
    "strong": {"linf": _STRONG, "l2": _STRONG},
}
# The paper's steps: .01 on MNIST at .3, .003 on CIFAR-10 at .031 or 8/255.
PAPER_STEPS = ((0.3, 0.01), (0.031, 0.003), (8 / 255, 0.003))


def suite_attacks(name: str, threat: Threat | str, classes: int | None = None) -> list[Settings]:
    """The settings of a suite's attacks for a threat, without those that so few classes do not define."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    threat = Threat.parse(threat)
    attacks = SUITES[name][threat.norm]
    if classes is not None and classes < 3:
        attacks = [settings for settings in attacks if settings.get("loss") != "dlr"]
    if name == "paper" and threat.norm == "linf":
        named = [step for eps, step in PAPER_STEPS if abs(eps - threat.eps) < 1e-9]
        return [*({"name": "pgd", "steps": 20, "step": step} for step in named), *attacks]
    return attacks
