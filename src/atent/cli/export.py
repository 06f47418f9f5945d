"""`atent export`."""

from pathlib import Path
from typing import Annotated

import typer

from atent.cli.options import DataDir, ModelName


def export(
    run: Annotated[str, typer.Argument(help="A run folder, a checkpoint of atent, or zoo:NAME.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write to; other files in it are left alone.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Also model.onnx; needs the extra `export`.")] = False,
    program: Annotated[bool, typer.Option("--torch-export", help="Also model.pt2, by torch.export.")] = False,
    robustbench: Annotated[
        bool, typer.Option("--robustbench", help="Also robustbench.json, the model info of RobustBench.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name on the card. Default: the run folder's.")] = None,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="Licence for the card, such as mit.")
    ] = None,
    model: ModelName = None,
    data_dir: DataDir = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import and run the package.module:function that a run names.")
    ] = False,
) -> None:
    """Write a trained network for other programs: weights, configuration and a model card with its results.

    The folder has the layout of the Hugging Face Hub: model.safetensors, config.json, README.md. The card's numbers
    are those of the run's rows for exactly these weights. ONNX and torch.export are checked: they must answer as the
    network does on a hundred images. For example:
    `atent export runs/demo --to demo-hub --onnx`, then `hf upload NAME demo-hub`
    """
    from atent.export import export_run
    from atent.report.terminal import tell

    made = export_run(
        run,
        to,
        name=name,
        licence=licence,
        onnx=onnx,
        program=program,
        robustbench=robustbench,
        model=model,
        data_dir=data_dir,
        trust=trust,
    )
    for line in made:
        tell(line)
    tell(f"Next: atent attack {to}/model.safetensors")
