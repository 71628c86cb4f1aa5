"""Where a store is, without any secret: what travels in plans, Ray messages and records.

Credentials are found by the process that opens the store (connect.py), never carried.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from warpbeam.errors import UserError

StoreKind = Literal["s3", "local", "embedded"]


@dataclass(frozen=True)
class StorageConfig:
    """A store's address.

    Args:
        uri: `s3://bucket/prefix`, or `file:///absolute/folder` for a local store.
        kind: `s3` (credentials by boto's own chain), `embedded` (this machine's server, credentials in its state
            file) or `local` (a folder).
        endpoint_url: an S3 server other than AWS; for `embedded` the address seen last, or None.
        region: for `s3`; None leaves it to boto's chain.
    """

    uri: str
    kind: StoreKind
    endpoint_url: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(StoreKind):
            raise UserError(
                f"storage kind {self.kind!r} is unknown",
                fix=f"write one of: {', '.join(get_args(StoreKind))}",
                reason="bad_storage",
            )
        object.__setattr__(self, "uri", self.uri.rstrip("/") if self.uri != "file:///" else self.uri)
        if self.kind == "local":
            local_path(self.uri)
        else:
            split_s3_uri(self.uri)
        if self.endpoint_url is not None:
            object.__setattr__(self, "endpoint_url", _checked_endpoint(self.endpoint_url))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> StorageConfig:
        """The inverse of `to_dict`."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise UserError(
                f"storage has unknown keys: {', '.join(unknown)}",
                fix=f"known keys: {', '.join(sorted(known))}",
                reason="bad_storage",
            )
        return cls(**value)


def split_s3_uri(uri: str) -> tuple[str, str]:
    """`s3://bucket/some/key` -> `("bucket", "some/key")`; the key may be empty."""
    scheme, separator, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not separator or not bucket:
        raise UserError(f"{uri!r} is not an S3 address", fix="write s3://BUCKET/PREFIX", reason="bad_storage")
    if not all(char.isascii() and (char.isalnum() or char in ".-_") for char in bucket):
        raise UserError(
            f"{bucket!r} cannot be a bucket's name",
            why="letters, digits, dots and hyphens only",
            fix="write s3://BUCKET/PREFIX",
            reason="bad_storage",
        )
    return bucket, key


def local_path(uri: str) -> Path:
    """`file:///some/folder` -> the absolute path."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UserError(
            f"{uri!r} is not a local folder's address", fix="write file:///absolute/folder", reason="bad_storage"
        )
    # urlsplit cuts at `?` and `#`, which are ordinary characters in a file's name when they are not escaped.
    return Path(unquote(uri.partition("://")[2].removeprefix("localhost")))


def _checked_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"storage endpoint {url!r} is not an address",
            fix="write http://HOST:PORT or https://HOST",
            reason="bad_endpoint",
        )
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"the storage endpoint for {parts.hostname} carries a user name or password",
            why="addresses are printed and recorded; secrets must not be in them",
            fix="take it out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
            reason="secret_in_address",
        )
    return url.rstrip("/")
