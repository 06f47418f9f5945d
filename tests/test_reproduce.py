"""`atent reproduce`: its data are the paper's, its numbers those of the rows, and a kill loses nothing."""

import math
import os
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from atent.data.dataset import load
from atent.evaluation.estimate import estimates
from atent.evaluation.sampling import Estimate
from atent.evaluation.trained import find_weights
from atent.models import Shape
from atent.reproduce import costs, curves, found, gibbs, networks, regions
from atent.reproduce.appendix import FIGURES, NAMES, TABLES
from atent.reproduce.costs import flops_per_pass, measure_passes, training_passes, words
from atent.reproduce.document import markdown
from atent.reproduce.engine import Place, jobs, run, start_method
from atent.reproduce.found import Evidence, Number, number, read_headers, same_recipe
from atent.reproduce.networks import MADE, NETWORKS, SIZES, THREE_LAYERS_SEARCH, recipe_at
from atent.reproduce.plan import BUDGETS, BudgetName, Figure, Measure, Network, Row
from atent.reproduce.stand_ins import make_data
from atent.reproduce.status import left_of
from atent.reproduce.tsne import affinities, conditional, embed, gradient, squared_distances
from atent.reproduce.work import work
from atent.storage.files import read_rows, write_json
from atent.storage.run import Run
from short_table import SHORT, make_short_table, short_place
from test_cli import assert_refused, atent
from toys import SHARED, needs_shared

ROWS = [row for parts in TABLES.values() for table in parts for row in table.rows]
DRAWN = [row for figure in FIGURES.values() for row in figure.rows]
ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"\d+\.\d+ (?:\[\d+\.\d+, \d+\.\d+\]|\+- \d+\.\d+)")
ALWAYS_NEW = (".md", ".tex", ".log", ".lock")  # tables, output and locks


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("short") / "smoke"
    make_short_table(home)
    return home


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_network_has_a_recipe_at_every_budget(budget: BudgetName, tmp_path: Path) -> None:
    for name in NETWORKS:
        recipe = recipe_at(name, budget, tmp_path)
        made_here = Path(recipe.data).parent == tmp_path / "data" and Path(recipe.data).stem in MADE
        assert made_here or recipe.data in (["mnist-small"] if budget == "smoke" else ["mnist", "cifar10"])
        assert training_passes(recipe) > 0
    used = {row.network for row in (*ROWS, *DRAWN)}
    assert used | {network.start for network in NETWORKS.values()} - {None} == set(NETWORKS)


def test_trainings_take_float32_where_bfloat16_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that has begun keeps its precision, and a finished one counts in either."""
    name = "mnist-l2-pgd-at"
    monkeypatch.setattr(networks, "emulates_bf16", lambda _device: False)
    half = recipe_at(name, "cpu", tmp_path)
    monkeypatch.setattr(networks, "emulates_bf16", lambda _device: True)
    single = recipe_at(name, "cpu", tmp_path)
    assert (half.amp, single.amp, single.model_copy(update={"amp": "bf16"})) == ("bf16", "off", half)
    run = Run(tmp_path / name)
    run.folder.mkdir()
    write_json(run.recipe_file, half.model_dump())
    assert recipe_at(name, "cpu", tmp_path) == half
    assert same_recipe(single, run.folder)
    assert not same_recipe(single.model_copy(update={"epochs": 7}), run.folder)
    write_json(run.recipe_file, single.model_dump())
    monkeypatch.setattr(networks, "emulates_bf16", lambda _device: False)
    assert recipe_at(name, "cpu", tmp_path) == single
    write_json(run.recipe_file, {"unknown": 1})
    assert not same_recipe(single, run.folder)


def test_every_row_fits_its_table() -> None:
    for parts in TABLES.values():
        for table in parts:
            assert all(set(row.cells) <= set(table.columns) for row in table.rows)
            assert all(set(row.paper) <= set(row.cells) for row in table.rows)
            assert table.notes or table.title.startswith("The same")
    assert [name for name in NAMES if name.startswith("table")] == [f"table{k}" for k in range(1, 7)]


@needs_shared
@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("table1", "tab:MNIST"),
        ("table2", "tab:MNIST2"),
        ("table3", "tab:CIFAR2"),
        ("table4", "tab:CIFAR1"),
        ("table5", "tab:smooth"),
        ("table6", "tab:atent"),
    ],
)
def test_the_numbers_of_the_paper_are_those_that_it_prints(name: str, label: str) -> None:
    """Row by row where the paper has a line per training; Table 3 has a column per training."""
    text = (SHARED / "paper" / "atent-paper.tex").read_text(encoding="utf-8")
    (body,) = re.findall(rf"label{{{label}}}(.*?)end{{table}}", text, re.DOTALL)
    lines = [set(re.findall(r"\d+\.\d+", line)) for line in re.split(r"\\hline|\\\\", body)]
    for row in (row for table in TABLES[name] for row in table.rows if row.paper and not row.curve):
        ours = {f"{value:.2f}" for value in row.paper.values()}
        printed = [{f"{float(text):.2f}" for text in line} for line in lines]
        if name == "table3":
            printed = [set[str]().union(*printed)]
        assert any(ours <= line for line in printed), row.label


def test_the_authors_curve_is_that_of_the_faithful_run() -> None:
    """Settings and curve as in the paper's Table 2 run; the released notebook is described next to it."""
    (row,) = (row for row in ROWS if row.curve)
    recipe = recipe_at(row.network, "full", Path())
    chain = {key: recipe.defense[key] for key in ("steps", "step", "noise", "start", "project", "mode")}
    assert chain == {"steps": 40, "step": 0.02, "noise": 1e-4, "start": "corner", "project": "last", "mode": "train"}
    assert (recipe.optimizer["lr"], recipe.epochs, [round(robust, 1) for _, robust in row.curve]) == (
        0.03,
        2,
        [73.3, 86.0],
    )
    assert any("notebook" in note and "80 steps of .01" in note for note in TABLES["table2"][0].notes)


def test_numbers_are_those_of_the_rows(done: Path) -> None:
    """Shares counted from the files, Wilson's interval by its formula."""
    place = short_place(done)
    for row in SHORT.rows:
        (file,) = (done / row.network / "attack").glob("pgd-*.jsonl")
        lines = [line for line in read_rows(file) if "robust" in line]
        n, share = len(lines), sum(line["robust"] for line in lines) / len(lines)
        found = place.number(row, row.cells["PGD-40"])
        middle, half = share + 1.96**2 / (2 * n), 1.96 * math.sqrt(share * (1 - share) / n + 1.96**2 / (4 * n * n))
        low, high = ((middle + sign * half) / (1 + 1.96**2 / n) for sign in (-1, 1))
        assert found is not None
        assert found.images == n == 10
        assert found[:3] == pytest.approx((100 * share, 100 * max(low, 0), 100 * min(high, 1)), abs=0.01)
        clean, strong = place.number(row, row.cells["clean"]), place.number(row, row.cells["strong"])
        assert clean is not None
        assert clean.value == 100 * sum(line["clean"] == line["label"] for line in lines) / n
        assert strong is not None
        assert strong.low <= strong.value <= strong.high <= clean.value
        # Other settings, another radius and more images are other measures.
        measure, recipe, folders = row.cells["PGD-40"].at("smoke"), place.recipe(row.network), place.folders(row)
        others = (replace(measure, attack={"name": "pgd", "steps": 3}), replace(measure, threat="linf:0.2"))
        sizes = (replace(measure, images=11), replace(measure, images=None))
        assert {number(one, recipe, folders) for one in (*others, *sizes)} == {None}
        assert number(measure, recipe, folders) == found


def test_tables_have_all_numbers_and_the_notes(done: Path) -> None:
    shown, typeset = (done / "short.md").read_text(), (done / "short.tex").read_text()
    place = short_place(done)
    for row in SHORT.rows:
        found = place.number(row, row.cells["PGD-40"])
        assert f"{found} (10)" in shown
        assert f"{found} (10)" in typeset
    assert "- A note with 5 % & a_b." in shown
    assert r"A note with 5 \% \& a\_b." in typeset
    assert typeset.count("{") == typeset.count("}")
    curve = replace(SHORT, rows=(replace(SHORT.rows[0], curve=((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))),))
    epoch = Run(done / SHORT.rows[0].network).history()[1]
    assert re.search(rf"\| 2 \| {100 * epoch['clean']:.2f} \[.*\] \| 3.00 \|", markdown([curve], place))
    assert "| 3 | not measured | 5.00 | not measured | 6.00 |" in markdown([curve], place)
    missing = markdown([SHORT], short_place(done / "nothing"))
    assert missing.count("not measured") == 6


def test_the_numbers_of_a_row_are_of_one_network(done: Path, tmp_path: Path) -> None:
    """That of the first rows, or a given one; rows of other networks or data, samples of other seeds do not count."""
    place, (ours, other) = short_place(done), SHORT.rows
    recipe, measures = place.recipe(ours.network), [measure.at("smoke") for measure in ours.cells.values()]
    folders = [done / other.network, done / ours.network]
    assert [number(one, recipe, folders) for one in measures] == [place.number(other, one) for one in measures]
    header = next(read_headers(done / ours.network))
    mine = [number(one, recipe, folders, header["weights"]) for one in measures]
    assert mine == [place.number(ours, one) for one in measures]
    assert None not in mine
    for changed in (recipe.model_copy(update={"data": "other"}), recipe.model_copy(update={"smooth": 0.5})):
        assert {number(one, changed, folders) for one in measures} == {None}
    copied = tmp_path / "copied"
    shutil.copytree(done / ours.network, copied)
    (sample,) = (copied / "sample").glob("*.jsonl")
    (found,) = Evidence.of(recipe, [copied], None).estimates()
    content = sample.read_bytes()
    sample.write_bytes(content.replace(b'"confidence": 0.95', b'"confidence": 0.5'))
    assert [one.confidence for one in estimates(copied)] == [0.5]
    assert [one.estimate for one in Evidence.of(recipe, [copied], None).estimates()] == [found.estimate]
    sample.write_bytes(content.replace(b'"seed": 0', b'"seed": 7'))
    assert len(estimates(copied)) == 1
    assert not list(Evidence.of(recipe, [copied], None).estimates())


def test_of_several_samples_the_narrowest_counts(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a wider one, of fewer images, is read after it."""
    place, row = short_place(done), SHORT.rows[0]
    folder, recipe = done / row.network, place.recipe(row.network)
    (measure,) = (one.at("smoke") for one in row.cells.values() if one.kind == "strong")
    (first,) = estimates(folder)
    value = first.estimate.value
    wide = first._replace(drawn=50, estimate=Estimate(value, value - 3, value + 3))
    narrow = first._replace(drawn=150, estimate=Estimate(value, value - 0.5, value + 0.5))
    for samples in ([wide, narrow], [narrow, wide]):
        monkeypatch.setattr(found, "estimates", lambda *_, samples=samples: samples)
        counted = number(measure, recipe, [folder])
        assert counted is not None
        assert (counted.low, counted.drawn) == (value - 0.5, 150)


def test_nothing_is_done_twice_and_finished_runs_are_reused(done: Path, tmp_path: Path) -> None:
    place = short_place(done)
    assert jobs(place, SHORT.rows) == []
    elsewhere = tuple(done / row.network for row in SHORT.rows)
    assert jobs(replace(place, home=tmp_path, reuse=elsewhere), SHORT.rows) == []
    (job, _) = jobs(replace(place, home=tmp_path), SHORT.rows)
    assert job.trained is None
    assert len(job.missing) == 2
    other = replace(SHORT.rows[0], cells={"PGD-20": Measure("attack", {"name": "pgd", "steps": 20, "loss": "margin"})})
    (job,) = jobs(replace(place, home=tmp_path, reuse=elsewhere), [other])
    assert job.trained == elsewhere[0]
    work(job)  # with the weights of the other folder, rows in ours
    assert not Run(tmp_path / other.network).best.exists()
    assert jobs(replace(place, home=tmp_path, reuse=elsewhere), [other]) == []
    assert (done / other.network / "attack").exists()


def test_a_new_training_has_all_measures_of_its_own(done: Path, tmp_path: Path) -> None:
    """Rows of an older network are enough while none is missing; they do not fill cells of a new one."""
    row, old, place = SHORT.rows[0], tmp_path / "old" / SHORT.rows[0].network, short_place(tmp_path / "new")
    shutil.copytree(done / row.network, old, ignore=shutil.ignore_patterns("*.safetensors"))
    place = replace(place, reuse=(old,))
    assert jobs(place, [row]) == []
    (file,) = (old / "attack").glob("pgd-*.jsonl")
    file.unlink()
    (job,) = jobs(place, [row])
    assert (job.trained, len(job.missing)) == (None, 2)
    shutil.copy2(Run(done / row.network).best, Run(old).best)
    (job,) = jobs(place, [row])
    assert (job.trained, len(job.missing)) == (old, 1)


def test_one_folder_of_runs_is_reused_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights are not in results/, but rows are enough: nothing of Table 2 is missing."""
    given = ("table2", "--budget", "cpu", "--status", "--out", str(tmp_path), "--reuse")
    assert atent("reproduce", *given, str(ROOT / "results" / "reproduce")) == 0
    assert "mnist" not in capsys.readouterr().out
    assert atent("reproduce", *given, str(ROOT / "results" / "reproduce" / "mnist-linf-atent")) == 0
    missing = capsys.readouterr().out
    assert "mnist-linf-atent " not in missing
    assert "mnist-linf-mart" in missing


def test_pretrained_networks_are_not_trained_again(tmp_path: Path) -> None:
    """At `cpu` they are those of the recipe; elsewhere, and with a run of one's own, they are not used."""
    name = "cifar10-linf-one-step"
    place = Place(tmp_path, "cpu")
    network = place.trained(name)
    assert network == Path("zoo:cifar10-linf")
    _, recipe = find_weights(network)
    assert recipe is not None
    place.recipe(name).check_same(recipe, network)
    (job,) = jobs(place, [row for row in ROWS if row.network == name])
    assert job.trained == network
    assert left_of(replace(job, missing=()), place).passes == 0
    assert Place(tmp_path, "smoke").trained(name) is None
    own = (ROOT / "results" / "zoo" / "cifar10-linf",)
    assert replace(place, reuse=own).trained(name, weights=False) == own[0]


def test_a_network_waits_for_the_one_that_it_starts_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        NETWORKS, "pair-tuned", Network("mnist-linf-pgd-at", THREE_LAYERS_SEARCH, start="pair-standard")
    )
    place = short_place(tmp_path)
    todo = jobs(place, [Row("tuned", "pair-tuned", {})])
    assert [job.network for job in todo] == ["pair-standard", "pair-tuned"]
    assert run(todo, 1, lambda _: None) == {}
    assert Path(str(place.recipe("pair-tuned").weights)) == tmp_path / "pair-standard"
    assert jobs(place, [Row("tuned", "pair-tuned", {})]) == []


def files(home: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of what may not be written again."""
    kept = [path for path in sorted(home.rglob("*")) if path.is_file() and path.suffix not in ALWAYS_NEW]
    return {str(path.relative_to(home)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in kept}


def finished(home: Path) -> dict[str, tuple[int, int]]:
    """The files of networks of which nothing is missing."""
    left = {job.network for job in jobs(short_place(home), SHORT.rows)}
    return {name: state for name, state in files(home).items() if name.partition("/")[0] not in left}


@pytest.mark.timeout(400)
def test_killed_soon_after_it_began_to_write_it_resumes_and_gives_the_same_tables(done: Path, tmp_path: Path) -> None:
    context, moments = start_method(), random.Random(0)
    kept, kills = dict[str, tuple[int, int]](), 0
    for begun in ("pair-standard/last.safetensors", "pair-standard/attack", "pair-atent/last.safetensors", None):
        process = context.Process(target=make_short_table, args=(tmp_path,))
        process.start()
        while begun and process.is_alive() and not (tmp_path / begun).exists():
            time.sleep(0.001)
        process.join(moments.uniform(0, 0.03) if begun else None)
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        kept |= finished(tmp_path)
    assert process.exitcode == 0
    assert kills >= 2
    after = files(tmp_path)
    assert {name: after[name] for name in kept} == kept
    for end in ("md", "tex"):
        assert (tmp_path / f"short.{end}").read_bytes() == (done / f"short.{end}").read_bytes()


@pytest.mark.timeout(400)
def test_two_processes_give_the_same_tables_and_report_a_failure(done: Path, tmp_path: Path) -> None:
    (tmp_path / "pair-atent" / "recipe.json").mkdir(parents=True)  # this training cannot be written
    place = short_place(tmp_path)
    todo = jobs(place, SHORT.rows[:1])
    (bad,) = jobs(short_place(tmp_path / "other"), SHORT.rows[1:])
    failed = run([*todo, replace(bad, home=tmp_path)], 2, lambda _: None)
    assert list(failed) == ["pair-atent"]
    assert "recipe.json" in failed["pair-atent"]
    first = replace(SHORT, rows=SHORT.rows[:1])
    assert markdown([first], place) == markdown([first], short_place(done))


def test_data_have_the_sizes_that_are_assumed(done: Path, tmp_path: Path) -> None:
    make_data(tmp_path / "patches.npz", None)
    for path in (tmp_path / "patches.npz", done / "data" / "pair-small.npz"):
        train, test = (load(str(path), split) for split in ("train", "test"))
        assert (len(train), len(test), test.shape) == SIZES[path.stem]
    assert {path.stem for path in (done / "data").iterdir()} == {"pair-small"}


def test_costs_count_passes(tmp_path: Path) -> None:
    """By hand: ten steps and a last pass; LeNet5's multiplications; a sample of 550 images."""
    recipe = recipe_at("mnist-linf-pgd-at", "cpu", tmp_path)
    assert training_passes(recipe, 1) == 11 * 55_000
    assert training_passes(recipe_at("mnist-linf-entropy-sgd", "cpu", tmp_path), 1) == 5 * 55_000
    assert measure_passes(Measure("attack", {"name": "pgd", "steps": 40, "restarts": 10}), recipe) == 400 * 10_000
    assert measure_passes(Measure("strong"), recipe) == 41 * 10_000 + 550 * 640
    layers = 784 * 32 * 25 + 196 * 64 * 32 * 25 + 3136 * 1024 + 1024 * 10
    assert flops_per_pass("lenet5", Shape((1, 28, 28), 10)) == 3 * 2 * layers
    assert [words(t) for t in (5, 90, 5400, 3 * 86_400)] == ["5 s", "2 min", "1.5 h", "3.0 days"]


def test_figures_show_what_is_there_and_are_always_alike(done: Path, tmp_path: Path) -> None:
    place, row = short_place(done), SHORT.rows[0]
    clean, history = place.number(row, row.cells["clean"]), Run(done / row.network).history()
    assert clean is not None
    regions.draw(Figure("Regions", SHORT.rows), place, tmp_path / "regions")
    assert f"SGD: clean {clean.value:.1f}" in (tmp_path / "regions.svg").read_text(encoding="utf-8")
    drawn = []
    for name in ("one", "two"):
        curves.draw(Figure("Curves", (row,)), place, tmp_path / name / "curves")
        drawn.append([(tmp_path / name / f"curves.{end}").read_bytes() for end in ("svg", "png")])
    assert drawn[0] == drawn[1]
    assert f"held-out, clean {100 * history[-1]['clean']:.2f}".encode() in drawn[0][0]


def test_t_sne_keeps_its_definition() -> None:
    """Each point has the perplexity asked for, the gradient is the slope of the loss, clusters stay together."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 5)) + 30 * (np.arange(40) % 2)[:, None]
    p = affinities(x, 8.0)
    assert p.sum() == pytest.approx(1)
    assert (p == p.T).all()
    given = conditional(squared_distances(x), 8.0)
    assert np.exp(-(given * np.log(given + 1e-300)).sum(1)) == pytest.approx(np.full(40, 8.0), rel=1e-3)
    z = random.normal(size=(40, 2))
    move = random.normal(size=z.shape)
    rise = (gradient(p, z + 1e-5 * move)[0] - gradient(p, z - 1e-5 * move)[0]) / 2e-5
    assert rise == pytest.approx(float((gradient(p, z)[1] * move).sum()), rel=1e-5)
    layout = embed(x, 8.0)
    assert gradient(p, layout)[0] < gradient(p, z)[0] / 2
    near = squared_distances(layout)
    np.fill_diagonal(near, np.inf)
    assert (near.argmin(1) % 2 == np.arange(40) % 2).all()


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_the_chains_of_figure_2_have_the_density_drawn_next_to_them(temperature: float) -> None:
    """Mean loss of the ends against quadrature of the density, within four standard errors and the step's bias."""
    at = np.linspace(-2, 3, 4001)
    height = gibbs.loss(torch.from_numpy(at)).numpy()
    law = gibbs.density(temperature, at)
    mean = np.trapezoid(law * height, at)
    spread = math.sqrt(np.trapezoid(law * height**2, at) - mean**2)
    ends = gibbs.loss(torch.from_numpy(gibbs.sample(temperature, chains=1000, steps=1000))).numpy()
    assert ends.mean() == pytest.approx(mean, abs=4 * spread / math.sqrt(1000) + 0.01)


def test_the_command_prints_and_writes_the_tables_and_names_what_failed(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TABLES, "table1", (SHORT,))
    assert atent("reproduce", "table1", "--out", done.parent) == 0
    shown = capsys.readouterr()
    for end in ("md", "tex"):
        assert (done / f"table1.{end}").read_bytes() == (done / f"short.{end}").read_bytes()
        assert (done / f"short.{end}").read_text(encoding="utf-8") in shown.out
    command = ("reproduce", "table1", "--budget", "cpu", "--out", done.parent, "--data-dir", done, "--processes", 1)
    assert atent(*command) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: mnist: no file")
    assert error.endswith("(pair-standard, pair-atent)")


def test_a_printed_interval_contains_its_value() -> None:
    assert str(Number(71.34, 65.46, 71.34, 10_000)) == "71.34 [65.5, 71.4]"
    assert str(Number(71.36, 71.36, 72.0, 10_000)) == "71.36 [71.3, 72.0]"
    assert str(Number(99.4, 99.21, 99.4, 10_000)) == "99.40 [99.2, 99.4]"
    assert str(Number(0.0, 0.0, 0.04, 10_000)) == "0.00 [0.0, 0.0]"


def test_the_rate_of_a_pass_is_that_of_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def recorded(network: torch.nn.Module, precision: str) -> torch.nn.Module:
        used.append(precision)
        return network

    monkeypatch.setattr(costs, "accelerated", recorded)
    assert costs.seconds_per_pass.__wrapped__("small-cnn", Shape((1, 28, 28), 10), "bf16") > 0
    assert set(used) == {"bf16"}


def test_status_times_trainings_in_their_own_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training in bfloat16 has the rate of bfloat16, its measures that of float32."""
    monkeypatch.setattr(
        costs, "seconds_per_pass", lambda _model, _shape, precision: {"bf16": 1.0, "off": 10.0}[precision]
    )
    monkeypatch.setattr(networks, "emulates_bf16", lambda _device: False)
    place = Place(tmp_path, "cpu")
    (job,) = jobs(place, [row for row in TABLES["table1"][0].rows if row.network == "mnist-l2-trades"])
    recipe = place.recipe(job.network)
    measures = sum(measure_passes(measure, recipe) for _, measure in job.missing)
    assert recipe.amp == "bf16"
    assert left_of(job, place).seconds == pytest.approx(training_passes(recipe) + 10 * measures)


def test_status_and_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(capsys, ["'table7'", "table6", "figure1", "all"], "reproduce", "table7")
    assert_refused(capsys, ["--budget gpu", "smoke, cpu, full"], "reproduce", "table1", "--budget", "gpu")
    assert_refused(capsys, ["--reuse nowhere", "atent train"], "reproduce", "table1", "--reuse", "nowhere")
    assert_refused(capsys, ["--processes", "1"], "reproduce", "table1", "--processes", "0")
    assert atent("reproduce", "figure1", "--status", "--budget", "full") == 0
    shown = capsys.readouterr().out
    assert "pair-atent" in shown
    assert "GPU-days at 10 TFLOP/s" in shown
    assert not Path("runs").exists()


def test_the_page_on_the_paper_has_numbers_of_rows_only() -> None:
    """Every accuracy with an interval or a deviation is in a table that test_readme.py makes of rows."""
    paper, *made = (
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        for name in ("paper", "results", "atent", "paper-tables")
    )
    tables = "".join(
        part for page in made for part in re.findall(r"made by `make readme` -->(.*?)<!-- end", page, re.S)
    )
    quoted = NUMBER.findall(" ".join(paper.split()))
    assert len(quoted) > 10
    assert set(quoted) <= set(NUMBER.findall(tables))
