"""Attacks of other libraries behind our protocol: `foolbox:LinfPGD`, `art:CarliniLInfMethod`, any class by its name.

The libraries are imported when an attack of theirs is made.
"""

import contextlib
import importlib
import inspect
import io
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atent.errors import UserError, unknown
from atent.inputs import checked
from atent.network import borrowed
from atent.progress import detail
from atent.threat import Threat, over_pixels

LIBRARIES = {"foolbox": "foolbox", "art": "adversarial-robustness-toolbox"}
# Given by us, so not a user's to set: the network, the threat, true labels to leave, silence.
OURS = ("self", "estimator", "classifier", "eps", "norm", "targeted", "summary_writer", "verbose")

Search = Callable[[nn.Module, Tensor, Tensor, Threat], Tensor]


@dataclass(frozen=True)
class Engine:
    """An attack of another library that is told the radius. Its point counts only where it is inside the threat.

    `settings` are its name and every field, `given` those that the user chose.
    """

    settings: Mapping[str, Any]
    given: Mapping[str, Any]
    search: Search

    @property
    def title(self) -> str:
        name = str(self.settings["name"]).replace(":", " ")
        chosen = ", ".join(f"{key} {value}" for key, value in self.given.items())
        return f"{name} ({chosen})" if chosen else name

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        with checked(model, x, y, threat) as threat:
            if threat.eps == 0:
                return x.clone()
            points = self.points(model, x, y, threat, generator)
            _, near, _ = threat.measure(points, x)
            return torch.where(over_pixels(near.to(x.device), x), points, x)

    def points(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
        """What the library returns for the images that are right; the others as they are."""
        points = x.clone()
        with lent(model, self.settings["name"], generator), reported(model, lambda passes, _: f"{passes:,} passes"):
            right = model(x).argmax(1) == y
            if right.any():
                found = self.search(model, x[right].contiguous(), y[right], threat)
                points[right] = found.detach().to(x)
        return points


@dataclass(frozen=True)
class MinimalEngine(Engine):
    """An attack of another library that looks for the nearest misclassified point, whatever the radius."""

    def nearest(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat | str, generator: torch.Generator
    ) -> Tensor:
        with checked(model, x, y, threat) as threat:
            return self.points(model, x, y, threat, generator)


@contextmanager
def lent(model: nn.Module, name: str, generator: torch.Generator) -> Iterator[int]:
    """Lend the model to a library's attack: quietly, and as `seeded`; a failure is reported in one line.

    In addition to what `borrowed` restores, gradients that parameters hold are kept: ART clears them.
    """
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with borrowed(model), quiet(), seeded(generator) as seed:
            yield seed
    except UserError:
        raise
    except Exception as error:  # whatever a stranger's code may raise
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"attack {name} failed: {type(error).__name__}: {reason}") from error
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def reported(model: nn.Module, words: Callable[[int, int], str]) -> Iterator[None]:
    """Show as detail, after each pass through the model, `words` of the passes so far and the images in the last."""
    passes = itertools.count(1)
    hook = model.register_forward_hook(lambda *seen: detail(words(next(passes), len(seen[-1]))))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def quiet() -> Iterator[None]:
    """No prints, and no warnings about the libraries' own code."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(foolbox|eagerpy|art|pyautoattack)(\.|$)")
        yield


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[int]:
    """Python's, NumPy's and torch's global randomness seeded from the generator, afterwards as it was; the seed."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([generator.device] if generator.device.type == "cuda" else []):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            yield seed
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)


def make_engine(settings: Mapping[str, Any]) -> Engine:
    """Make `{"name": "foolbox:LinfPGD", field: value, ...}`; a wrong class or field is refused with the right ones."""
    library, _, name = str(settings["name"]).partition(":")
    home, parent = _foolbox() if library == "foolbox" else _art()
    classes = {key: value for key, value in vars(home).items() if inspect.isclass(value) and issubclass(value, parent)}
    if name not in classes or inspect.isabstract(classes[name]):
        raise unknown(f"{library} attack", name, [key for key in classes if not inspect.isabstract(classes[key])])
    build = classes[name]
    defaults = {parameter.name: parameter.default for parameter in inspect.signature(build).parameters.values()}
    fields = [key for key in defaults if key not in OURS]
    given = {key: value for key, value in settings.items() if key != "name"}
    for key in given:
        if key not in fields:
            raise unknown("attack field", key, fields, str(settings["name"]))
    written = {key: _plain(defaults[key]) for key in fields} | given
    if library == "foolbox":
        minimal = issubclass(build, importlib.import_module("foolbox.attacks.base").MinimizationAttack)
        search = _foolbox_search(build, given, minimal)
    else:
        minimal = "eps" not in defaults
        search = _art_search(build, given, set(defaults))
    return (MinimalEngine if minimal else Engine)({"name": settings["name"], **written}, given, search)


def import_library(name: str, module: str) -> Any:
    """Import a module of an optional library, or say how to install it."""
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        absent = error.name is None or error.name.partition(".")[0] == module.partition(".")[0]
        state = "is not installed" if absent else f"cannot be imported ({error})"
        raise UserError(f"{name} {state}; pip install 'atent[attacks]'") from None


def _foolbox() -> tuple[Any, Any]:
    home = import_library(LIBRARIES["foolbox"], "foolbox.attacks")
    return home, home.Attack


def _art() -> tuple[Any, Any]:
    home = import_library(LIBRARIES["art"], "art.attacks.evasion")
    return home, importlib.import_module("art.attacks").EvasionAttack


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | None) else repr(value)


def _foolbox_search(build: Any, fields: Mapping[str, Any], minimal: bool) -> Search:
    foolbox: Any = importlib.import_module("foolbox")

    def search(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        network = foolbox.PyTorchModel(model, bounds=threat.box, device=x.device)
        radius = None if minimal else threat.eps  # with a radius it would stop at the first point within it
        _, points, _ = build(**fields)(network, x, foolbox.Misclassification(y), epsilons=radius)
        return points  # type: ignore[no-any-return]

    return search


class Opaque(nn.Module):
    """A network as one layer that takes doubles, and whose input gradients are contiguous.

    ART runs the layers of an `nn.Sequential` itself, past the network's own hooks; pyautoattack takes views of
    gradients, which a network with channels last would return in its own layout; some attacks of ART forget float32.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        x = x.float().view_as(x)
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)
        return self.network(x)


def _art_search(build: Any, fields: Mapping[str, Any], takes: set[str]) -> Search:
    art: Any = importlib.import_module("art.estimators.classification")

    def search(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        if x.device.type not in ("cpu", "cuda"):
            raise UserError(f"--device {x.device.type} with an attack of art; allowed: cpu, cuda")
        network = art.PyTorchClassifier(
            Opaque(model).eval(),
            loss=nn.CrossEntropyLoss(),
            input_shape=tuple(x.shape[1:]),
            nb_classes=model(x[:1]).shape[1],
            clip_values=threat.box,
            device_type="gpu" if x.device.type == "cuda" else "cpu",
        )
        # Its own defaults, .1 a step and one image at a time, do not know the threat; the step is that of our PGD-N.
        steps = fields.get("max_iter", inspect.signature(build).parameters.get("max_iter"))
        steps = getattr(steps, "default", steps)
        told: dict[str, Any] = {
            "eps": threat.eps,
            "eps_step": min(2.5 * threat.eps / steps, threat.eps) if steps else threat.eps,
            "norm": np.inf if threat.norm == "linf" else 2,
            "batch_size": len(x),
            "verbose": False,
        }
        told = {key: value for key, value in told.items() if key in takes}
        attack = build(network, **told | dict(fields))
        points = attack.generate(x.cpu().numpy().astype(np.float32), y.cpu().numpy())
        return torch.from_numpy(np.asarray(points, np.float32))

    return search
