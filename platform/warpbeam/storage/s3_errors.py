"""What an S3 client's exceptions mean for a person: who can mend it, and how.

One function from boto's exceptions to ours, so that every operation tells the same story. Nothing here prints a
credential: boto's messages hold at most the access key's id, which S3 itself echoes, and that is cut out too.
"""

from __future__ import annotations

from typing import Any

from boto3.exceptions import Boto3Error, RetriesExceededError
from botocore import exceptions as boto_errors
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from warpbeam.errors import DiskFull, InfraError, WarpbeamError
from warpbeam.storage.store import ObjectMissing, StoreSetupError

S3_ERRORS = (BotoCoreError, ClientError, Boto3Error, ResponseParserError)
"""Whatever boto3 raises about a request."""

UNREACHABLE = (
    boto_errors.EndpointConnectionError,
    boto_errors.ConnectTimeoutError,
    boto_errors.ConnectionClosedError,
    boto_errors.ReadTimeoutError,
    boto_errors.ProxyConnectionError,
    boto_errors.HTTPClientError,
)

_REJECTED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired"}
_DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403"}
_MISSING = {"NoSuchKey", "NotFound", "404"}
_ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException"}
_NO_CONDITIONS = {"NotImplemented", "501", "UnsupportedOperation"}
_FULL = {"InsufficientStorage", "XMinioStorageFull", "507", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded"}

_CREDENTIALS_FIX = (
    "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) where this command runs; "
    "in a cluster, the pool's secrets"
)


def error_code(error: BaseException) -> str:
    """S3's code (`NoSuchKey`), or the HTTP status where there is no body (HEAD); empty for other exceptions."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_code(error: BaseException) -> int | None:
    """The HTTP status of an answer."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(error, ClientError) else None


def is_missing(error: BaseException) -> bool:
    """The object is not there (its bucket may or may not be)."""
    return error_code(error) in _MISSING


def underlying(error: BaseException) -> BaseException:
    """The cause inside boto3's transfer errors, which say it only as text."""
    if isinstance(error, RetriesExceededError):
        return underlying(getattr(error, "last_exception", None) or Exception(str(error)))
    if isinstance(error, Boto3Error) and isinstance(error.__context__, S3_ERRORS):
        return error.__context__
    return error


def no_credentials(uri: str, why: str = "") -> StoreSetupError:
    """Nothing in boto's chain gave credentials."""
    return StoreSetupError(
        f"no S3 credentials for {uri}",
        why=why or "neither the environment, nor a profile, nor this machine's role gives any",
        fix=_CREDENTIALS_FIX,
        reason="no_credentials",
    )


def missing_bucket(uri: str, endpoint_url: str | None) -> StoreSetupError:
    """There is no such bucket on that server."""
    bucket = uri.removeprefix("s3://").partition("/")[0]
    at = f" at {endpoint_url}" if endpoint_url else ""
    return StoreSetupError(
        f"there is no bucket {bucket!r}{at}",
        why=f"asked for {uri}",
        fix="create it, or correct the bucket or the endpoint in the pool's `storage:` or the job's path",
        reason="bucket_missing",
    )


def translate(error: BaseException, *, uri: str, endpoint_url: str | None = None) -> WarpbeamError:
    """Our error for what boto raised while it worked on `uri` (a store's or an object's)."""
    error = underlying(error)
    if isinstance(error, WarpbeamError):
        return error
    if isinstance(error, ClientError):
        return _from_answer(error, uri, endpoint_url)
    if isinstance(
        error,
        boto_errors.NoCredentialsError
        | boto_errors.PartialCredentialsError
        | boto_errors.CredentialRetrievalError
        | boto_errors.ProfileNotFound
        | boto_errors.TokenRetrievalError
        | boto_errors.SSOError,
    ):
        return no_credentials(uri, why=str(error))
    if isinstance(error, boto_errors.SSLError):
        return StoreSetupError(
            f"no trusted TLS connection to the store of {uri}{_at(endpoint_url)}",
            why=str(error),
            fix="check http:// or https:// in the pool's endpoint_url; for an own authority set AWS_CA_BUNDLE",
            reason="store_tls",
        )
    if isinstance(error, UNREACHABLE):
        return InfraError(
            f"the store of {uri} cannot be reached{_at(endpoint_url)}",
            why=_first_line(error),
            fix="check endpoint_url in the pool's `storage:`, that the server runs, and the network to it",
            reason="store_unreachable",
        )
    if isinstance(error, ResponseParserError):
        return _not_s3(uri, endpoint_url, "its answer is not S3's XML")
    if isinstance(error, ValueError | boto_errors.ParamValidationError):
        return StoreSetupError(f"{uri} cannot be used", why=_first_line(error), reason="bad_storage")
    return InfraError(f"the store failed on {uri}", why=_first_line(error), reason="store_failed")


def _from_answer(error: ClientError, uri: str, endpoint_url: str | None) -> WarpbeamError:
    code = error_code(error)
    at = _at(endpoint_url)
    if code == "NoSuchBucket":
        return missing_bucket(uri, endpoint_url)
    if code in _MISSING and error.operation_name.startswith("List"):
        return _not_s3(uri, endpoint_url, "it answers a listing with 404 and no code of S3's")
    if code in _MISSING:
        return ObjectMissing(f"there is no {uri}")
    if code in _REJECTED:
        return StoreSetupError(
            f"the S3 credentials are not accepted for {uri}{at}",
            why=_REASONS.get(code, code),
            fix=_CREDENTIALS_FIX,
            reason="credentials_rejected",
        )
    if code in _DENIED:
        return StoreSetupError(
            f"no right to {error.operation_name} on {uri}{at}",
            why=f"the store answered {code}",
            fix="ask who runs the store to allow it for these credentials, or use others",
            reason="access_denied",
        )
    if code in _ELSEWHERE:
        return StoreSetupError(
            f"the bucket of {uri} is in another region",
            why=str(error.response.get("Error", {}).get("Message", code)),
            fix="set the bucket's region in the pool's `storage:` (region: ...)",
            reason="wrong_region",
        )
    if code in _NO_CONDITIONS:
        return StoreSetupError(
            f"the store of {uri}{at} cannot do {error.operation_name} as asked",
            why=f"it answered {code}",
            fix="check that the pool's `storage:` names an S3 server (endpoint, not a web page), and one that knows "
            "conditional writes (docs/storage.md)",
            reason="store_unsupported",
        )
    return _from_failure(error, uri, endpoint_url)


def _from_failure(error: ClientError, uri: str, endpoint_url: str | None) -> WarpbeamError:
    """Answers that neither the credentials nor the request's address explain."""
    code, status = error_code(error), status_code(error)
    if code == "RequestTimeTooSkewed":
        return InfraError(
            f"this machine's clock differs too much from the clock of the store of {uri}",
            why="S3 refuses signatures that are 15 minutes off",
            fix="synchronise the clock (chrony, systemd-timesyncd)",
            reason="clock_skew",
        )
    if code in _FULL or status == 507:
        return DiskFull(f"disk full: the store of {uri}{_at(endpoint_url)}", why=code)
    if status is not None and 300 <= status < 500 and status not in (408, 429):
        return _not_s3(uri, endpoint_url, f"it answered {error.operation_name} with {_said(error, code, status)}")
    return InfraError(
        f"the store failed on {error.operation_name} for {uri}{_at(endpoint_url)}",
        why=_said(error, code, status),
        reason="store_failed",
    )


_REASONS = {
    "InvalidAccessKeyId": "the store does not know this access key",
    "SignatureDoesNotMatch": "the secret key does not belong to this access key",
    "ExpiredToken": "the session token has expired",
    "TokenRefreshRequired": "the session token has expired",
    "InvalidToken": "the session token is not valid",
}


def _not_s3(uri: str, endpoint_url: str | None, why: str) -> StoreSetupError:
    return StoreSetupError(
        f"the store of {uri}{_at(endpoint_url)} refused",
        why=why,
        fix="check that endpoint_url in the pool's `storage:` is an S3 server's address (its API, not its console)",
        reason="store_refused",
    )


def _said(error: ClientError, code: str, status: int | None) -> str:
    return f"{code or status}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": ")


def _at(endpoint_url: str | None) -> str:
    return f" at {endpoint_url}" if endpoint_url else ""


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
