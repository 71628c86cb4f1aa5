"""boto3 clients with the settings that were measured, one per process and address.

boto's defaults wait a minute for a stalled connection (facts section 5). Credentials are resolved here, in the process
that opens the store: boto's own chain for `s3`, the state file of this machine's server for `embedded`. They never
leave the client.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from warpbeam.storage.config import StorageConfig
from warpbeam.storage.s3_errors import no_credentials, translate

if TYPE_CHECKING:
    from botocore.config import _S3Dict
    from mypy_boto3_s3 import S3Client

_CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)


@dataclass(frozen=True)
class ClientSettings:
    """How long a client waits and how often it tries again."""

    connect_timeout_s: float = 5
    read_timeout_s: float = 10
    """Between two packets, not for a whole request."""
    attempts: int = 5
    """In all, with boto's `standard` back-off."""


DEFAULT_SETTINGS = ClientSettings()
PROBE_SETTINGS = ClientSettings(connect_timeout_s=3, read_timeout_s=5, attempts=2)
"""For a question to which a person waits for the answer."""

_clients: dict[tuple[Any, ...], S3Client] = {}
_lock = threading.RLock()


def s3_client(config: StorageConfig, settings: ClientSettings = DEFAULT_SETTINGS) -> S3Client:
    """The process's client for this store; made on first use, safe to share between threads.

    For an embedded server this starts it, or restarts it on the same data, when it is not running.
    """
    key = _cache_key(config, settings)
    client = _clients.get(key)
    if client is None:
        with _lock:
            client = _clients.get(key)
            if client is None:
                make = _embedded_client if config.kind == "embedded" else _chain_client
                client = _clients[key] = make(config, settings)
    return client


def forget_client(config: StorageConfig) -> None:
    """Drop the cached clients of this store, so that the next use resolves address and credentials anew."""
    with _lock:
        for key in [key for key in _clients if key[:4] == _cache_key(config, DEFAULT_SETTINGS)[:4]]:
            del _clients[key]


def signed_client(
    endpoint_url: str, access_key: str, secret_key: str, settings: ClientSettings = DEFAULT_SETTINGS
) -> S3Client:
    """A client with these credentials only: no profile, no AWS_* variable and no proxy of this machine has a say."""
    isolated = dict.fromkeys(("profile", "ca_bundle", "endpoint_url"), (None, None, None, None))
    nowhere = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    session = boto3.Session(
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        botocore_session=botocore.session.Session(session_vars={**isolated, **nowhere}),
    )
    # `proxies={}` keeps a loopback server reachable on machines that set HTTP_PROXY without NO_PROXY.
    config = _boto_config(settings, endpoint_url).merge(Config(proxies={}))
    return session.client("s3", endpoint_url=endpoint_url, config=config, verify=False)


def _embedded_client(config: StorageConfig, settings: ClientSettings) -> S3Client:
    from warpbeam.storage.embedded import server_for

    server = server_for(config)
    # A refused connection on loopback means a dead server: come back soon, so that S3Store can start it again.
    settings = replace(settings, attempts=min(settings.attempts, 3))
    return signed_client(server.endpoint_url, server.access_key, server.secret_key, settings)


def _chain_client(config: StorageConfig, settings: ClientSettings) -> S3Client:
    endpoint = _endpoint(config)
    try:
        session = boto3.Session()
        credentials = session.get_credentials()
        # A server of one's own rarely cares for the region, but a signature needs one.
        region = config.region or session.region_name or ("us-east-1" if endpoint else None)
        client = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=region,
            config=_boto_config(settings, endpoint),
        )
    except (BotoCoreError, ValueError) as error:
        raise translate(error, uri=config.uri, endpoint_url=endpoint) from error
    if credentials is None:
        raise no_credentials(config.uri)
    return client


def _endpoint(config: StorageConfig) -> str | None:
    return config.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _boto_config(settings: ClientSettings, endpoint: str | None) -> Config:
    s3: _S3Dict = {}
    if endpoint is not None:
        s3["addressing_style"] = "path"
        if urlsplit(endpoint).hostname in ("127.0.0.1", "::1", "localhost"):
            # Nobody comes between: a body's CRC is enough. Over https boto decides so by itself, and a plain-http
            # server elsewhere gets its bodies signed.
            s3["payload_signing_enabled"] = False
    return Config(
        signature_version="s3v4",
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": settings.attempts},
        tcp_keepalive=True,
        max_pool_connections=32,
        s3=s3,
        user_agent_extra="warpbeam",
    )


def _cache_key(config: StorageConfig, settings: ClientSettings) -> tuple[Any, ...]:
    """The process (a fork must not share sockets), the address, and whatever the credentials come from."""
    if config.kind == "embedded":
        from warpbeam.storage.embedded import home

        source: Any = Path(home())
    else:
        source = hash(tuple(os.environ.get(name) for name in _CREDENTIAL_VARIABLES))
    return (os.getpid(), config.kind, config.endpoint_url, source, config.region, settings)


def _start_afresh() -> None:
    """In a forked child: the parent's sockets, and a lock that another thread may have held, are useless."""
    global _lock
    _lock = threading.RLock()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
