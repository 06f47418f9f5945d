"""The command line, one module per command.

Slow imports are inside the commands, so that `atent --help` is fast.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

from atent import __version__
from atent.cli import attack, certify, data, lists, show, train
from atent.errors import Interrupted, ThreatWarning, UserError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train image classifiers that are robust to adversarial attacks, attack them, and certify them.\n\n"
    "Start with: atent train demo, then atent attack runs/demo.",
)

app.command("train")(train.train)
app.command("attack")(attack.attack)
app.command("certify")(certify.certify)
app.command("show")(show.show)
app.command("list")(lists.list_names)

data_app = typer.Typer(help="Download data sets, or list them.", rich_markup_mode="markdown")
data_app.command("fetch")(data.fetch_data)
data_app.command("list")(data.list_data)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version or context.invoked_subcommand is None:
        print(__version__ if version else context.get_help())
        raise typer.Exit


def main() -> None:
    """Run the command; a user's error prints one line and gives exit code 2."""
    try:
        with _doubts_in_a_line():
            code = app(standalone_mode=False)
    except UserError as error:
        code = _fail(str(error))
    except BrokenPipeError:  # `atent list | head`
        code = 1
    except OSError as error:
        code = _fail(f"{error.filename or 'the disk'}: {error.strerror or error}")
    except Interrupted as stop:
        print(f"{stop}; saved. Run the same command to resume.", file=sys.stderr)
        code = stop.code
    except KeyboardInterrupt:
        print("stopped immediately. Run the same command to resume from the last saved state.", file=sys.stderr)
        code = 130
    except Exception as error:
        # A usage error of the command-line library; the module of its class depends on the library's version.
        if not hasattr(error, "format_message"):
            raise
        code = _fail(f"{error.format_message()} (atent --help)")
    sys.exit(code)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


@contextmanager
def _doubts_in_a_line() -> Iterator[None]:
    """Print each ThreatWarning once, in one line without the place in the code."""
    told: set[str] = set()
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, ThreatWarning):
                show_other(message, category, filename, lineno, file, line)
            elif str(message) not in told:
                told.add(str(message))
                print(f"warning: {message}", file=sys.stderr)

        warnings.simplefilter("always", ThreatWarning)
        warnings.showwarning = show
        yield
