"""Options of the commands, declared once: those that several take, and those of `atent attack`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atent.limits import PIXELS

if TYPE_CHECKING:
    import torch

    from atent.evaluation.target import Target

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder that holds the data set, or a folder named after it. Default: $ATENT_DATA or the cache."),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Data set (atent list data), a folder with a folder of images per class, or an .npz with x and y.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", help="Network (atent list models), your own package.module:function, timm:NAME or torchvision:NAME."
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto: a GPU if there is one.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: all cores.")]
Amp = Annotated[
    str | None,
    typer.Option(
        metavar="bf16|fp16|off",
        help="Passes of the network in half precision; weights and losses stay in float32. Default: off.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, e.g. epochs=2 or defense.steps=5. Repeatable."),
]

AttackName = Annotated[
    str | None,
    typer.Option(
        help="Attack (atent list attacks), foolbox:CLASS, art:CLASS or your own package.module:Name. Default: pgd.",
        show_default=False,
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A field of the attack, e.g. steps=40. Repeatable."),
]
Suite = Annotated[
    str | None, typer.Option(help="Several attacks instead of one: quick, paper (the ATENT paper's) or strong.")
]
Threats = Annotated[
    list[str] | None,
    typer.Option("--threat", help="Such as linf:0.3, linf:8/255 or l2:0.5. Repeatable. Default: the recipe's."),
]
Smooth = Annotated[
    float | None,
    typer.Option(
        metavar="SIGMA",
        help="Attack the network smoothed with normal noise of this deviation; 0: not smoothed. Default: the recipe's.",
        show_default=False,
    ),
]
Draws = Annotated[int, typer.Option(help="With --smooth: noisy copies per image and pass.", min=1)]
Checks = Annotated[
    bool | None,
    typer.Option(
        "--checks/--no-checks",
        help="Look for signs that the attacks fail. Default: with --suite strong.",
        show_default=False,
    ),
]
Transfer = Annotated[
    str | None,
    typer.Option(
        metavar="OTHER",
        help="Also check with points made on another network, named like TARGET. Turns --checks on.",
    ),
]
Within = Annotated[
    float | None,
    typer.Option(
        metavar="POINTS",
        help="Estimate the accuracy of all images to +- POINTS: a cheap attack on all, the others on a random sample.",
        show_default=False,
    ),
]
Claim = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        help='Sample until "at least PERCENT of all images are robust" is accepted or refuted.',
        show_default=False,
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        help="With --within and --claim: probability that the interval holds. Default: 0.95.", show_default=False
    ),
]
Examples = Annotated[int | None, typer.Option(help="Attack the first N test images. Default: all.")]
Seed = Annotated[int, typer.Option(help="Seed of the attack's random starts, and of the sample.")]
Batch = Annotated[
    int | None,
    typer.Option(help="Images attacked at once. Default: 250, and 50 in a sample.", min=1, show_default=False),
]
Classes = Annotated[bool, typer.Option("--classes", help="Also print the accuracies of each class.")]
SaveImages = Annotated[
    bool,
    typer.Option("--save-images", help="Save the attacked images: all as .npz, the first misclassified ones as .png."),
]


@dataclass(frozen=True)
class TargetOptions:
    """TARGET, and the options for what it is, where it runs and where its rows go."""

    target: Annotated[
        str,
        typer.Argument(
            help="A run folder, zoo:NAME (atent zoo), a weights file with --model, or package.module:function with "
            "--data."
        ),
    ]
    out: Annotated[Path | None, typer.Option(help="Folder for the rows. Default: the run's, or a new one.")] = None
    data: DataName = None
    data_dir: DataDir = None
    resize: Annotated[
        int | None, typer.Option(help="Crop and scale own images to N x N. Default: as in training.", min=1, max=PIXELS)
    ] = None
    white: Annotated[
        int | None, typer.Option(help="Own images of 16 bits: the pixel value that becomes 1. Default: as in training.")
    ] = None
    model: ModelName = None
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Import and run the package.module:function that a run or a weights file names."),
    ] = False
    device: Device = "auto"
    threads: Threads = None
    amp: Amp = None

    def open(self, examples: int | None = None) -> "tuple[Target, torch.device]":
        """The target with its first images, on the device."""
        from atent.evaluation.target import in_precision, open_target
        from atent.machine import pick_device, prepare

        prepare(self.threads)
        device = pick_device(self.device)
        known = {key: getattr(self, key) for key in ("model", "data", "data_dir", "resize", "white", "trust")}
        found = open_target(self.target, examples=examples, device=device, **known)
        return in_precision(found, self.amp or "off"), device
