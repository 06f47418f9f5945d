"""`atent verify`: untouched runs hold; each kind of tampering is named, also where checksums were made anew."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atent.evaluation.estimate import draw_order
from atent.smoothing.bounds import ABSTAIN
from atent.storage.certificates import CERTIFY
from atent.storage.files import load_tensors, save_tensors
from atent.storage.row_file import RowFile
from atent.storage.row_format import SEALED, close_batch, to_line
from atent.storage.rows import ATTACK
from atent.verification.rows import row_faults
from atent.verification.verify import Checked, _order_faults
from attacked_run import EXAMPLES, FEWER, attacked_run
from test_cli import assert_refused, atent
from test_compare import write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    attacked_run(tmp_path)
    return Path("runs/tiny")


def rows_file(run: Path, norm: str = "linf") -> Path:
    (found,) = (run / "attack").glob(f"pgd*-{norm}-*.jsonl")
    return found


def resealed(path: Path, change: Callable[[dict[str, Any], list[dict[str, Any]]], None]) -> None:
    """Change header and rows, and make every checksum anew: what a careful forger does."""
    header, *lines = map(json.loads, path.read_text().splitlines())
    rows = [line for line in lines if "index" in line]
    change(header, rows)
    first = to_line({**header, **SEALED})
    body = [to_line(row) for row in rows]
    closing, _ = close_batch(first, body, None)
    path.write_bytes(b"".join([first, *body, closing]))


def verify(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    """The exit code, all lines, and those of faults without their file."""
    capsys.readouterr()
    code = atent("verify", run, "--threads", 1)
    printed = capsys.readouterr()
    faults = re.findall(r"^does not hold: \S+: (.*)$", printed.out, re.MULTILINE)
    last = printed.err.splitlines()[-1] if printed.err else ""
    assert (code == 2) == bool(faults) == last.startswith(f"error: {run} does not verify: "), printed
    return code, printed.out, faults


def test_untouched_runs_hold(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verify(run, capsys)
    assert code == 0
    for images, files in ((EXAMPLES, 2), (FEWER, 1)):  # linf and l2; a nearest-point attack
        points = f"{images} predictions, {images} points, {images} predictions at the points"
        assert out.count(f"checksums, name, rows, weights, labels, {points}") == files
    assert "certify-sigma-0.25-mnist-small" in out
    assert out.count("not checked: ") == 2
    assert out.count("counts under noise") == 2
    assert "robust % [95 %]" in out  # the tables, made again


def test_rows_in_half_precision_are_checked_in_half_precision(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logits near 1,000 are multiples of 4 in bfloat16: the largest one in float32 is often another."""
    for folder in ("attack", "certify", "bracket"):
        shutil.rmtree(run / folder)
    tensors, info = load_tensors(run / "best.safetensors")
    (bias,) = [tensor for name, tensor in tensors.items() if name.endswith("bias") and tensor.shape == (10,)]
    bias += 1000
    save_tensors(run / "best.safetensors", tensors, info)
    how = ["--set", "steps=1", "--threat", "linf:0.1", "--examples", 16, "--amp", "bf16", "--save-images"]
    assert atent("attack", run, *how, "--threads", 1) == 0
    code, out, _ = verify(run, capsys)
    assert code == 0
    assert "16 predictions, 16 points, 16 predictions at the points" in out


@pytest.mark.parametrize("amp", [{}, {"amp": "bf16"}])
def test_a_sample_has_the_order_of_its_first_phase_in_the_same_precision(amp: dict[str, str], tmp_path: Path) -> None:
    files = {
        half: write(tmp_path, [k % 2 == 0 or half for k in range(9)], **({"amp": "bf16"} if half else {}))
        for half in (False, True)
    }
    first = RowFile(ATTACK, files[bool(amp)]).read()
    order = draw_order([row["index"] for row in first.rows if row["robust"]], 0)
    sample = first._replace(header={**first.header, "first": first.header["attack"], "order": order})
    checked = Checked(tmp_path / "sample" / "one.jsonl")
    assert list(_order_faults(checked.path, sample, checked)) == []
    assert checked.unchecked == []
    without = sample._replace(header={key: value for key, value in sample.header.items() if key != "order"})
    (fault,) = _order_faults(checked.path, without, checked)
    assert fault.startswith("its order is not that of the ")


def test_a_recipe_of_an_older_version_is_completed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors, info = load_tensors(run / "best.safetensors")
    older = json.loads((run / "recipe.json").read_text())
    del older["recoveries"], older["gibbs"]
    (run / "recipe.json").write_text(json.dumps(older))
    del info["recipe"]["monitor"]["restarts"]
    save_tensors(run / "best.safetensors", tensors, info)
    assert verify(run, capsys)[0] == 0
    save_tensors(run / "best.safetensors", tensors, {**info, "recipe": {**info["recipe"], "batch": 7, "gibbs": 0.1}})
    _, _, faults = verify(run, capsys)
    assert faults == ["its recipe is not that of recipe.json: batch, gibbs differ"]


def broken_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["clean"] == row["label"] and not row["robust"])


def claim_robust(_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    broken_row(rows)["robust"] = True


def claim_all(_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    row = broken_row(rows)
    row["robust"], row["adversarial"] = True, row["label"]


def claim_clean(_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["clean"] != row["label"])
    row["clean"] = row["adversarial"] = row["label"]
    row["robust"] = True


def claim_label(_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["clean"] != row["label"])
    row["label"] = row["clean"]


def claim_threat(header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    header["threat"] = "linf:0.11"
    del rows


def claim_network(header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    header["weights"] = "0" * 64
    del rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (claim_robust, ["image \\d+: robust is True, but label", "the row has robust True, the saved one False"]),
        (claim_all, ["predicted \\d at the saved point, but the network predicts", "the saved one"]),
        (claim_clean, ["predicted \\d without an attack, but the network predicts", "the saved one"]),
        (claim_label, ["label \\d, but that of the test image is"]),
        (claim_threat, ["its header was changed, or it was renamed"]),
        (claim_network, ["rows of another network: weights 00000000", "its header was changed"]),
    ],
)
def test_a_changed_row_or_header_is_named_though_it_is_sealed_again(
    change: Callable[..., None], words: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resealed(rows_file(run), change)
    _, _, faults = verify(run, capsys)
    assert 1 <= len(faults) <= 5
    for pattern in words:
        assert any(re.search(pattern, fault) for fault in faults), faults


def test_a_row_that_is_changed_by_hand_is_named_with_its_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows_file(run, "l2")
    path.write_text(path.read_text().replace('"robust": false', '"robust": true', 1))
    _, out, faults = verify(run, capsys)
    assert "do not match their checksum" in faults[0]
    assert any("robust is True" in fault for fault in faults)
    assert "l2:1" not in out.partition("robust % [95 %]")[2]  # no table is made of it


def test_changed_weights_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = run / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-1] ^= 1
    best.write_bytes(content)
    _, _, faults = verify(run, capsys)
    assert "is damaged: its content does not match its checksum" in faults[0]
    attacked_run(Path("other"))
    shutil.copy("other/runs/tiny/best.safetensors", best)
    tensors, info = load_tensors(best)
    name = next(iter(tensors))
    tensors[name].view(-1)[0] += 1e-3
    save_tensors(best, tensors, info)  # with a checksum of its own
    _, _, faults = verify(run, capsys)
    assert len(faults) == 5
    assert all("rows of another network" in fault for fault in faults)


def points_changed(run: Path, change: Callable[[dict[str, Any]], None], norm: str = "linf") -> None:
    path = rows_file(run, norm).with_suffix(".npz")
    with np.load(path) as found:
        arrays = dict(found)
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_point_outside_the_threat_is_named(norm: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def move(arrays: dict[str, Any]) -> None:
        x, x_adv = arrays["x"][7], arrays["x_adv"][7]
        x_adv += 0.3 * np.where(x > 0.5, -1, 1).astype(x.dtype)

    points_changed(run, move, norm)
    _, _, faults = verify(run, capsys)
    assert re.fullmatch(rf"image 7: a point of size \S+, outside {norm}:\S+", faults[0])
    assert len(faults) <= 2  # and perhaps another prediction there


def test_a_changed_image_and_one_outside_the_box_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def swap(arrays: dict[str, Any]) -> None:
        arrays["x"][3, 0, 0, 0] += 1 / 255
        arrays["x_adv"][5, 0, 0, 0] = -0.05

    points_changed(run, swap)
    _, _, faults = verify(run, capsys)
    assert "image 3: not the test image" in faults
    assert any(fault.startswith("image 5: ") and "outside the pixel box" in fault for fault in faults)


def test_images_of_other_rows_and_half_a_file_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points_changed(run, lambda arrays: arrays.update({key: array[:9] for key, array in arrays.items()}))
    path = rows_file(run, "l2").with_suffix(".npz")
    path.write_bytes(path.read_bytes()[:1000])
    _, _, faults = verify(run, capsys)
    assert any(f"it has 9 images, which are not those of the {EXAMPLES} rows" in fault for fault in faults)
    assert any("cannot read" in fault for fault in faults)


def test_a_certificate_that_its_counts_do_not_prove_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def enlarge(_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        row = rows[0]
        row.update(radius=0.1, prediction=row["top"], label=row["top"], counts={str(row["top"]): 60, "99": 40})
        row["draws"] = 200

    (path,) = (run / "certify").glob("*.jsonl")
    resealed(path, enlarge)
    _, _, faults = verify(run, capsys)
    assert any("draws disagree: too many to prove it" in fault for fault in faults)


def exact_rows(agreed: int, radius: float) -> tuple[dict[str, Any], list[Any]]:
    header = {"sigma": 0.5, "n0": 100, "n": 1000, "alpha": 0.001, "exact": True, "radii": [(0.0, "")]}
    counts = {"1": agreed, "2": 1000 - agreed}
    prediction = 1 if radius else ABSTAIN
    row = {
        "index": 0,
        "label": 1,
        "prediction": prediction,
        "radius": radius,
        "top": 1,
        "counts": counts,
        "draws": 1100,
    }
    return header, [row]


def test_the_radius_of_all_draws_is_that_of_clopper_and_pearson() -> None:
    """Cohen et al.: sigma times the normal quantile of the lower bound, here from scipy's beta distribution."""
    from scipy import stats

    bound = stats.beta.ppf(0.001, 900, 101)
    radius = 0.5 * float(stats.norm.ppf(bound))
    assert list(row_faults(CERTIFY, *exact_rows(900, radius))) == []
    assert list(row_faults(CERTIFY, *exact_rows(900, radius + 0.001)))
    assert list(row_faults(CERTIFY, *exact_rows(400, 0.0))) == []
    assert list(row_faults(CERTIFY, *exact_rows(400, 0.1)))


def test_only_the_first_faults_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [True] * 4)  # rows alone: what they state is checked
    path = write(tmp_path / "many", [True] * 30)

    def break_all(_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["robust"] = False

    resealed(path, break_all)
    code, out, _ = verify(tmp_path, capsys)
    assert code == 0
    assert "not checked: " in out
    assert "no weights in the folder" in out
    _, _, faults = verify(tmp_path / "many", capsys)
    assert len(faults) == 6
    assert faults[-1] == "25 more of this kind"


def test_what_cannot_be_verified_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert_refused(capsys, ["nowhere: there is no such folder"], "verify", "nowhere")
    assert_refused(capsys, ["empty has no rows to verify"], "verify", "empty")


def test_unfinished_rows_are_not_faults(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows_file(run)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20]))
    code, out, _ = verify(run, capsys)
    assert code == 0
    assert "is unfinished" in out
