"""A tar of logs, read as a stream. Nothing of it is ever written to a disk, so a path in it can reach nothing; and what
it may cost is limited, because whoever made it may mean harm.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from warpbeam.doctor.collect import Item
from warpbeam.doctor.scan import BLOCK_BYTES
from warpbeam.errors import UserError

HEADER_BYTES = 1 << 20
"""A long name or an extended header: tarfile reads these whole."""


@dataclass(frozen=True)
class Limits:
    """What a bundle may cost.

    Args:
        members: entries of any kind.
        unpacked: bytes of all members together.
    """

    members: int = 200_000
    unpacked: int = 64 << 30


class _Member(tarfile.TarInfo):
    """A member whose header is not read when it claims to be huge."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        plain = self.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
        if not plain and self.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found


def bundle_items(
    path: Path, left_out: list[str], limits: Limits | None = None, file: BinaryIO | None = None
) -> Iterator[Item]:
    """The regular files of a tar (plain or compressed), in its order.

    Args:
        file: its content, where it is no file of this machine; `path` is then only its name.

    Raises:
        UserError: it is not a tar, or exceeds a limit.
    """
    allowed = limits or Limits()
    try:
        with tarfile.open(path, "r|*", fileobj=file, tarinfo=_Member) as tar:
            yield from _members(tar, path, left_out, allowed)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a bundle",
            why=str(error) or type(error).__name__,
            fix="a bundle is a .tar or .tar.gz of log files; a folder goes to --logs DIR",
            reason="bad_bundle",
        ) from error


def _members(tar: tarfile.TarFile, path: Path, left_out: list[str], limits: Limits) -> Iterator[Item]:
    budget = _Budget(path, limits.unpacked)
    for number, member in enumerate(tar, start=1):
        tar.members = []  # type: ignore[attr-defined]  # a stream is never gone back in; the list would only grow
        if number > limits.members:
            raise _too_much(path, f"it has more than {limits.members} entries")
        name = _label(member.name)
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            left_out.append(f"{name}: a link or special file")
        elif member.name.startswith("/") or ".." in Path(member.name).parts:
            left_out.append(f"{name}: a path that leads out of the bundle")
        else:
            yield name, _blocks(tar, member, budget)


@dataclass
class _Budget:
    path: Path
    left: int

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _too_much(self.path, "it unpacks to more than is allowed")


def _blocks(tar: tarfile.TarFile, member: tarfile.TarInfo, budget: _Budget) -> Iterator[bytes]:
    file = tar.extractfile(member)
    while file is not None and (block := file.read(BLOCK_BYTES)):
        budget.take(len(block))
        yield block


def _label(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:200]


def _too_much(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} is too large to be read",
        why=why,
        fix="unpack what you trust of it and use --logs DIR",
        reason="bundle_too_large",
    )
