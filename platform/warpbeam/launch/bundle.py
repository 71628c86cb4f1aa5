"""Pack the working folder for a cluster: what travels, how large it is, and a name that is its content.

Ray's own packing puts `.git` and virtual environments into the upload and fails with a bare HTTP error. Here the size
is known before anything is sent, what is left out is said, and the same content has the same name, so that it uploads
once.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pathspec import GitIgnoreSpec

from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.job import Job

LIMIT_BYTES = 100_000_000  # the dashboard of a Ray head takes no larger upload (100 MiB)
_UNPACKED_LIMIT_BYTES = 10 * LIMIT_BYTES  # beyond this, packing to see whether it fits would take minutes
_Ignores = tuple[tuple[str, GitIgnoreSpec], ...]  # (the folder's prefix, what its ignore file says)
_IGNORE_FILES = (".gitignore", ".rayignore")
_ALWAYS_OUT = GitIgnoreSpec.from_lines(
    [
        *(
            ".git",
            ".hg",
            ".svn",
            ".venv*/",
            "__pycache__/",
            "*.pyc",
            "node_modules/",
            ".DS_Store",
            ".ipynb_checkpoints/",
        ),
        *(".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/", ".env"),
        *("*-certificate/", "wandb/", "mlruns/"),  # what `certify` and trackers write beside a job
    ]
)


@dataclass(frozen=True)
class PackedFile:
    """One file that travels: its path inside the bundle and what it was when the folder was read."""

    name: str
    path: Path
    size: int
    mtime_ns: int
    executable: bool


@dataclass(frozen=True)
class Contents:
    """What a bundle would hold."""

    root: Path
    files: tuple[PackedFile, ...]
    left_out_links: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Unpacked."""
        return sum(file.size for file in self.files)

    def largest_folders(self, count: int = 5) -> list[tuple[str, int, int]]:
        """(folder, bytes, files) at most two levels deep, largest first; a folder that is nearly all of its parent
        stands for it. Large files of the root itself stand beside the folders.
        """
        size: Counter[str] = Counter()
        number: Counter[str] = Counter()
        for file in self.files:
            parts = file.name.split("/")[:-1]
            for depth in range(min(2, len(parts)) + 1):
                folder = "/".join(parts[:depth]) or "."
                size[folder] += file.size
                number[folder] += 1
        parents = {name for name in size for child in size if _is_child(child, name) and size[child] > 0.9 * size[name]}
        for file in self.files:
            if "/" not in file.name and file.size > 0.1 * size["."]:
                size[file.name], number[file.name] = file.size, 1
        names = [name for name in size if name != "." and name not in parents] or ["."]
        return [(name, size[name], number[name]) for name in sorted(names, key=lambda n: (-size[n], n))[:count]]


@dataclass(frozen=True)
class Bundle:
    """A packed folder. `digest` depends on names and content only, not on times or on how zlib packs."""

    path: Path
    digest: str
    packed_bytes: int

    @property
    def name(self) -> str:
        """Ray's name for an uploaded package."""
        return f"_ray_pkg_{self.digest[:32]}.zip"


def read_folder(root: Path) -> Contents:
    """List what would travel; reads names and sizes only."""
    links: list[str] = []
    files = sorted(_walk(root.resolve(), "", (), links), key=lambda file: file.name)
    return Contents(root.resolve(), tuple(files), tuple(sorted(links)))


def check_data_travels(contents: Contents, job: Job, job_root: Path) -> None:
    """Raise UserError for local data that the job needs and the bundle does not hold: on the cluster it is missing."""
    from warpbeam.data.sources import expand

    travelling = {file.path for file in contents.files}
    local = [source.path for source in (*job.data.train, *job.data.eval) if not source.path.startswith("s3://")]
    for path in local:
        missing = [file.uri for file in expand(path, job_root, None).files if _local(file.uri) not in travelling]
        if missing:
            raise UserError(
                f"the data {path} does not travel: {missing[0]} is not in the bundle",
                why=f"it lies outside {contents.root}, or .gitignore or .rayignore names it",
                fix="put the data into s3:// and name it there; small files may travel: move them, or un-ignore them",
                reason="data_left_out",
            )


def _local(uri: str) -> Path:
    return Path(os.path.realpath(uri.removeprefix("file://")))


def pack(contents: Contents, target: Path, *, limit_bytes: int = LIMIT_BYTES) -> Bundle:
    """Write the zip. Raises UserError when it is larger than `limit_bytes` or a file changes meanwhile."""
    if contents.total_bytes > limit_bytes / LIMIT_BYTES * _UNPACKED_LIMIT_BYTES:
        raise _too_large(contents, limit_bytes)
    digest = hashlib.sha256()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for file in contents.files:
            digest.update(_line(file.name, file.executable, _add(archive, file)))
            if archive.fp is not None and archive.fp.tell() > limit_bytes:
                raise _too_large(contents, limit_bytes)
    size = target.stat().st_size
    if size > limit_bytes:
        raise _too_large(contents, limit_bytes)
    return Bundle(target, digest.hexdigest(), size)


def content_digest(archive: zipfile.ZipFile) -> str:
    """What `Bundle.digest` of a packed folder is, from the zip itself."""
    digest = hashlib.sha256()
    for member in archive.infolist():
        content = hashlib.sha256()
        with archive.open(member) as packed:
            while data := packed.read(1024 * 1024):
                content.update(data)
        executable = bool(member.external_attr >> 16 & stat.S_IXUSR)
        digest.update(_line(member.filename, executable, content.hexdigest()))
    return digest.hexdigest()


def _line(name: str, executable: bool, digest: str) -> bytes:
    return f"{name}\0{int(executable)}\0{digest}\n".encode()


def _walk(
    folder: Path, prefix: str, ignores: tuple[tuple[str, GitIgnoreSpec], ...], links: list[str]
) -> Iterator[PackedFile]:
    for name in _IGNORE_FILES:
        if (folder / name).is_file():
            lines = (folder / name).read_text(errors="replace").splitlines()
            ignores = (*ignores, (prefix, GitIgnoreSpec.from_lines(lines)))
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            name = f"{prefix}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            if _left_out(f"{name}/" if is_folder else name, ignores):
                continue
            path = Path(entry.path)
            if is_folder:
                if not (path / "pyvenv.cfg").exists():
                    yield from _walk(path, f"{name}/", ignores, links)
            elif entry.is_symlink() and not _points_inside(path, folder, prefix):
                links.append(name)
            elif stat.S_ISREG((info := path.stat()).st_mode) and not _is_own_output(info):
                yield PackedFile(name, path, info.st_size, info.st_mtime_ns, bool(info.st_mode & stat.S_IXUSR))


def _is_own_output(info: os.stat_result) -> bool:
    """Whether this very command writes there (`warpbeam submit ... > submit.log`): it grows while it is packed."""
    own = [os.fstat(stream) for stream in (1, 2)]
    return any((one.st_dev, one.st_ino) == (info.st_dev, info.st_ino) for one in own)


def _left_out(name: str, ignores: _Ignores) -> bool:
    """Git's rule: the last matching pattern decides, deeper files after shallower ones."""
    if _ALWAYS_OUT.match_file(name):
        return True
    decision = False
    for prefix, spec in ignores:
        found = spec.check_file(name.removeprefix(prefix)).include
        decision = decision if found is None else found
    return decision


def _points_inside(link: Path, folder: Path, prefix: str) -> bool:
    """A link is packed as the file it points to, when that is a file of this working folder."""
    root = folder.parents[prefix.count("/") - 1] if prefix else folder
    target = link.resolve()
    return target.is_file() and target.is_relative_to(root)


def _is_child(child: str, parent: str) -> bool:
    return child != parent and (parent == "." or child.startswith(f"{parent}/"))


def _add(archive: zipfile.ZipFile, file: PackedFile) -> str:
    info = zipfile.ZipInfo(file.name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o100755 if file.executable else 0o100644) << 16
    digest = hashlib.sha256()
    read = 0
    try:
        with file.path.open("rb") as source, archive.open(info, "w", force_zip64=True) as packed:
            while data := source.read(1024 * 1024):
                digest.update(data)
                packed.write(data)
                read += len(data)
            after = os.fstat(source.fileno())
    except FileNotFoundError as error:
        raise _changed(file) from error
    if (read, after.st_size, after.st_mtime_ns) != (file.size, file.size, file.mtime_ns):
        raise _changed(file)
    return digest.hexdigest()


def _changed(file: PackedFile) -> UserError:
    return UserError(
        f"{file.name} changed while the working folder was packed",
        why="the cluster would get a mixture of two states",
        fix=f"run the command again, or write {file.name} into .rayignore if the job does not need it",
        reason="bundle_changed",
    )


def _too_large(contents: Contents, limit_bytes: int) -> UserError:
    folders = ", ".join(f"{name} ({_mb(size)}, {files} files)" for name, size, files in contents.largest_folders())
    return UserError(
        f"the working folder {contents.root} is too large to send: {_mb(contents.total_bytes)} in "
        f"{len(contents.files):,} files; the limit is {_mb(limit_bytes)} packed, and ten times that unpacked",
        why=f"largest: {folders}",
        fix="name what the job does not need in .rayignore (same syntax as .gitignore); put data into s3:// instead",
        reason="bundle_too_large",
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
