"""Recipes with changed, missing, added and damaged keys, as TOML, as JSON and by --set."""

from copy import deepcopy
from pathlib import Path
from typing import Any

from atent.attacks import ATTACKS
from atent.defenses import DEFENSES
from atent.methods import field_names
from atent.optim.optimizers import OPTIMIZERS
from atent.recipe import Recipe
from campaign.inside import command
from campaign.toy_run import RECIPE, to_toml, write_data
from campaign.values import NUMBERS, as_text, strange, to_json
from campaign.verdict import Draw, Kind, Outcome, faults_of

KEYS = list(Recipe.model_fields)
TABLES: dict[str, dict[str, Any]] = {"defense": dict(DEFENSES), "optimizer": dict(OPTIMIZERS), "monitor": dict(ATTACKS)}
SCHEDULES = ["constant", "step", "cosine", "one-cycle"]
OTHERS = {
    "optimizer": ["torch.optim:AdamW", "torch.optim:SGD", "torch.optim:LBFGS", "campaign.networks:Late", "os:system"],
    "defense": ["campaign.networks:Raising", "campaign.networks:Late", "campaign.networks:answer", "os:getcwd"],
    "monitor": ["campaign.networks:Late", "foolbox:LinfPGD", "art:Nothing", "cascade", "no.such:thing"],
    "schedule": ["torch.optim.lr_scheduler:StepLR", "torch.optim.lr_scheduler:ReduceLROnPlateau", "os:system"],
}
USUAL: dict[str, list[Any]] = {
    "data": ["data.npz", "mnist-small", "mnist", "nothing.npz", "."],
    "model": ["campaign.networks:folded", "campaign.networks:raises", "campaign.networks:exits", "small-cnn", "lenet-5",
              "campaign.networks:returns_text", "campaign.networks:Wrong", "campaign.networks:answer"],
    "threat": ["linf:8/255", "l2:0.5", "linf:0", "l2:1e300", "linf:1", "l1:1"],
    "epochs": [1, 3, 10**6], "batch": [1, 2, 5, 1000], "validation": ["auto", 0, 0.5, 27, 36],
    "amp": ["off", "bf16", "fp16"], "augment": ["none", "crop-flip", "shift", "affine"],
    "averaging": [0.0, 0.9, 0.999999],
    "minutes": [1e-4, 1e-9, 0.01, 525_600], "recoveries": [0, 1, 10], "choose": ["robust", "clean"],
    "patience": [1, 2, 10**9], "smooth": [0.0, 0.25, 1e308, 1e-300], "standardize": [True], "awp": [0.01, 1e300],
    "gibbs": [1.0, 1e308], "reset": [["1"], ["x"], []], "freeze": [["1"], ["0"], ["x"], [""]], "white": [1, 65535],
    "weights": ["run", "pretrained", "data.npz", "nothing.pt"], "resize": [6, 1, 10**9], "test_share": [0.01, 0.99],
}  # fmt: skip


def prepare(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    write_data(place / "data.npz")


def play(draw: Draw, prepared: Path, folder: Path) -> Outcome:
    (folder / "data.npz").symlink_to(prepared / "data.npz")
    table = drawn(draw)
    how = draw.random()
    settings = [f"--set={draw.choice(KEYS)}={shown(draw)}" for _ in range(draw.choice([1, 2]))] if how > 0.85 else []
    if draw.random() < 0.7:
        path, content = folder / "r.toml", to_toml(table).encode("utf-8", errors="surrogatepass")
    else:
        path, content = folder / "r.json", to_json(table)
    if draw.random() < 0.06:
        content = damaged(draw, content)
    path.write_bytes(content)
    verb = draw.choices(["train", "show", "plan"], [10, 2, 1])[0]
    more = {"train": ["--out", "run", "--threads", "1", "--device", "cpu"], "show": [], "plan": ["--no-probe"]}[verb]
    ended = command(verb, path.name, *more, *(settings if verb != "show" else []), patience=0.3)
    faults = faults_of(ended)
    return Outcome(f"atent {verb} {' '.join(settings)[:300]} {content[:1500]!r}" if faults else verb, tuple(faults))


def drawn(draw: Draw) -> dict[str, Any]:
    """A valid recipe with a few changes."""
    table = deepcopy(RECIPE)
    table["epochs"] = 1
    for part, known in TABLES.items():
        if draw.random() < 0.35:
            name = draw.choice([*known, *OTHERS[part]] if draw.random() < 0.3 else list(known))
            table[part] = {"name": name, **({"steps": 2} if "steps" in field_names(known.get(name)) else {})}
    if draw.random() < 0.2:
        table["schedule"] = {"name": draw.choice([*SCHEDULES, *OTHERS["schedule"]]), "warmup": draw.choice([0.0, 0.2])}
    for _ in range(draw.choices([0, 1, 2, 3, 6], [1, 6, 4, 2, 1])[0]):
        change(draw, table)
    return table


def change(draw: Draw, table: dict[str, Any]) -> None:
    """Change a key of the recipe or of one of its tables."""
    what, part = draw.random(), draw.choice([*TABLES, "schedule"])
    if what < 0.3:
        key = draw.choice(list(USUAL))
        table[key] = draw.choice(USUAL[key])
    elif what < 0.55:
        table[draw.choice(KEYS)] = strange(draw)
    elif what < 0.6:
        table[draw.choice(["epoch", "", "é", "a b", "base", "name", "defense.steps"])] = strange(draw)
    elif what < 0.65:
        table.pop(draw.choice(list(table)), None)
    elif isinstance(inside := table.setdefault(part, {"name": "constant"}), dict):
        known = field_names(TABLES.get(part, {}).get(as_text(inside.get("name")))) or ["name", "warmup", "factor", "lr"]
        inside[draw.choice([*known, "name"])] = draw.choice([strange(draw), draw.choice(NUMBERS), draw.choice(NUMBERS)])


def shown(draw: Draw) -> str:
    """A value as a person types it, or worse."""
    what = draw.random()
    if what < 0.1:
        return "[" * draw.choice([5, 3000, 100_000])
    if what < 0.15:
        return "9" * draw.choice([400, 5000, 100_000])
    if what < 0.2:
        return "{a=" * draw.choice([5, 3000])
    return as_text(strange(draw)).replace("\x00", "")[:5000]


def damaged(draw: Draw, content: bytes) -> bytes:
    """Some bytes changed, removed or added."""
    place = draw.randrange(len(content) + 1)
    what = draw.random()
    if what < 0.3:
        return content[:place]
    if what < 0.6:
        return content[:place] + bytes(draw.randrange(256) for _ in range(draw.choice([1, 2, 20]))) + content[place:]
    return content[:place] + content[place + draw.choice([1, 3, 50]) :]


RECIPES = Kind("recipes", play, prepare, batch=2000, full=20_000, short=500)
