"""The command line, one module per command.

Slow imports are inside the commands, so that `atent --help` is fast.
"""

import inspect
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Annotated, Any, TextIO

import typer

from atent import __version__
from atent.cli import (
    attack,
    certify,
    compare,
    data,
    ensemble,
    export,
    lists,
    plan,
    report,
    reproduce,
    show,
    train,
    verify,
    zoo,
)
from atent.cli.interrupts import STOPPED, STOPPED_LINE, remembering_interrupts
from atent.cli.last_resort import last_words
from atent.cli.options import TargetOptions
from atent.errors import Interrupted, LostProcess, ThreatWarning, UserError

TORCHRUN = "WORLD_SIZE"  # a variable that torchrun sets

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train image classifiers that are robust to adversarial attacks, attack them, and certify them.\n\n"
    "Start with: atent attack zoo:mnist-linf, or atent train demo, then atent attack runs/demo.",
)


def _with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `TargetOptions`; it is called with an object of them as its first argument."""
    _, *own = inspect.signature(command).parameters.values()
    argument, *shared = inspect.signature(TargetOptions).parameters.values()

    def run(**given: Any) -> None:
        command(TargetOptions(**{one.name: given.pop(one.name) for one in (argument, *shared)}), **given)

    run.__doc__, options = command.__doc__, [argument, *own, *shared]
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # what typer reads
    return run


app.command("plan", short_help="Estimate time, memory and cost of a training before it runs.")(plan.plan)
app.command("train", short_help="Train a network with a recipe.")(train.train)
app.command("attack", short_help="Attack a network on the test images.")(_with_target(attack.attack))
app.command("certify", short_help="Certify a network smoothed with noise.")(_with_target(certify.certify))
app.command("show", short_help="Show results, a recipe or the fields of a method.")(show.show)
app.command("compare", short_help="Compare runs image by image.")(compare.compare)
app.command("report", short_help="Write a report of runs as one HTML file.")(report.report)
app.command("verify", short_help="Check again what the rows of a run claim.")(verify.verify)
app.command("reproduce", short_help="Make a table or figure of the ATENT paper.")(reproduce.reproduce)
app.command("ensemble", short_help="Make one network of several trained ones.")(ensemble.ensemble)
app.command("export", short_help="Write a network for other programs: Hugging Face, ONNX.")(export.export)
app.command("zoo", short_help="List pretrained networks, or print a model card.")(zoo.zoo)
app.command("list", short_help="List recipes, models, methods and data sets.")(lists.list_names)

data_app = typer.Typer(help="Download data sets, or list them.", rich_markup_mode=None)
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
    silent = signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # as `__main__` has it while it imports
    if silent:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run()
    except KeyboardInterrupt:  # again, while the first one was handled
        code = STOPPED
    with suppress(KeyboardInterrupt):
        _close_streams()
        if silent:  # while Python ends, there is nothing to stop
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _run() -> int:
    """Run the command; returns its exit code."""
    try:
        with _doubts_in_a_line(), remembering_interrupts(), _joined():
            code = app(prog_name="atent", standalone_mode=False)
            if code == STOPPED:  # typer returns this for a KeyboardInterrupt
                raise KeyboardInterrupt
            return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:  # `atent list | head`
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'the disk'}: {error.strerror or error}")
    except LostProcess as lost:
        from atent.parallel.join import leave

        _report(str(lost))
        leave()
        raise
    except Interrupted as stop:
        _report(f"{stop}. Run the same command to resume.")
        return stop.code
    except SystemExit as end:  # our own commands return
        if isinstance(end.__context__, BrokenPipeError):  # the command-line library has seen it
            return 1
        return _fail(f"code of a network or a method ended the process: sys.exit({end.code!r})")
    except KeyboardInterrupt:
        _report(STOPPED_LINE)
        return STOPPED
    except Exception as error:
        # A usage error of the command-line library; the module of its class depends on the library's version.
        if hasattr(error, "format_message"):
            return _fail(f"{error.format_message()} (atent --help)")
        code, line = last_words(error)
        _report(f"error: {line}")
        return code


def _close_streams() -> None:
    """Flush the output here: where nobody reads it, Python would print a traceback of its own at the end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError, AttributeError):
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str) -> int:
    _report(f"error: {UserError(message)}")
    return 2


def _report(line: str) -> None:
    """Print why the command ended; where nobody can read it, the exit code says it."""
    if _reports():
        with suppress(OSError, ValueError, AttributeError):  # the last: of a closed stream
            _say(line)


def _say(line: str) -> None:
    from atent.progress import say

    say(line)


def _joined() -> AbstractContextManager[object]:
    """The processes that torchrun started; without torchrun nothing is imported."""
    if TORCHRUN not in os.environ:
        return nullcontext()
    from atent.parallel.join import joined

    return joined()


def _reports() -> bool:
    """Whether this process reports the end of its job: of those that torchrun started, the first to end does."""
    if TORCHRUN not in os.environ:
        return True
    from atent.parallel.join import speaks

    return speaks()


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
                _say(f"warning: {message}")

        warnings.simplefilter("always", ThreatWarning)
        warnings.showwarning = show
        yield
