"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

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
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import and run the package.module:function that a run or a weights file names."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: all cores.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, e.g. epochs=2 or defense.steps=5. Repeatable."),
]
