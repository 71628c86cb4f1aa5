from __future__ import annotations

import pickle

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore import exceptions as boto_errors
from botocore.exceptions import ClientError

from warpbeam.errors import DiskFull, InfraError, WarpbeamError
from warpbeam.storage import ObjectMissing, StoreSetupError
from warpbeam.storage.s3_errors import translate

_CANARY = "AKIACANARY"


def _answer(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "said so"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject"
    )


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (_answer("NoSuchKey", 404), ObjectMissing, "object_missing"),
        (_answer("404", 404), ObjectMissing, "object_missing"),
        (_answer("NoSuchBucket", 404), StoreSetupError, "bucket_missing"),
        (_answer("InvalidAccessKeyId", 403), StoreSetupError, "credentials_rejected"),
        (_answer("SignatureDoesNotMatch", 403), StoreSetupError, "credentials_rejected"),
        (_answer("ExpiredToken", 400), StoreSetupError, "credentials_rejected"),
        (_answer("AccessDenied", 403), StoreSetupError, "access_denied"),
        (_answer("403", 403), StoreSetupError, "access_denied"),
        (_answer("PermanentRedirect", 301), StoreSetupError, "wrong_region"),
        (_answer("NotImplemented", 501), StoreSetupError, "store_unsupported"),
        (_answer("MethodNotAllowed", 405), StoreSetupError, "store_refused"),
        (_answer("RequestTimeTooSkewed", 403), InfraError, "clock_skew"),
        (_answer("InsufficientStorage", 507), DiskFull, "disk_full"),
        (_answer("SlowDown", 503), InfraError, "store_failed"),
        (_answer("InternalError", 500), InfraError, "store_failed"),
        (boto_errors.NoCredentialsError(), StoreSetupError, "no_credentials"),
        (boto_errors.ProfileNotFound(profile="p"), StoreSetupError, "no_credentials"),
        (boto_errors.EndpointConnectionError(endpoint_url="http://h"), InfraError, "store_unreachable"),
        (boto_errors.ReadTimeoutError(endpoint_url="http://h"), InfraError, "store_unreachable"),
        (boto_errors.SSLError(endpoint_url="http://h", error="bad"), StoreSetupError, "store_tls"),
        (ValueError("Invalid endpoint"), StoreSetupError, "bad_storage"),
    ],
)
def test_each_failure_has_a_class_and_a_reason(error: Exception, kind: type[WarpbeamError], reason: str) -> None:
    ours = translate(error, uri="s3://b/k", endpoint_url="http://h:1")
    assert type(ours) is kind
    assert ours.reason == reason
    assert "s3://b/k" in str(ours) or "'b'" in str(ours)
    copy = pickle.loads(pickle.dumps(ours))
    assert (type(copy), copy.reason, str(copy)) == (kind, reason, str(ours))


def test_setup_errors_belong_to_the_platform_and_are_bad_input_for_a_script() -> None:
    ours = translate(_answer("NoSuchBucket", 404), uri="s3://b/k")
    assert (ours.owner, ours.exit_code) == ("platform", 2)
    assert ours.fix


def test_the_cause_inside_boto3s_transfer_error_is_found() -> None:
    failed = S3UploadFailedError("Failed to upload")
    failed.__context__ = _answer("NoSuchBucket", 404)
    assert translate(failed, uri="s3://b/k").reason == "bucket_missing"


def test_a_key_id_that_the_server_echoes_is_not_printed() -> None:
    error = ClientError(
        {"Error": {"Code": "InvalidAccessKeyId", "Message": f"no such id {_CANARY}", "AWSAccessKeyId": _CANARY}}, "Get"
    )
    assert _CANARY not in str(translate(error, uri="s3://b/k"))


@pytest.mark.parametrize(("operation", "kind"), [("ListObjectsV2", StoreSetupError), ("GetObject", ObjectMissing)])
def test_404_to_a_listing_is_another_server_and_not_a_missing_object(operation: str, kind: type[WarpbeamError]) -> None:
    error = ClientError({"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, operation)  # type: ignore[arg-type]
    found = translate(error, uri="s3://b/teams/", endpoint_url="http://x")
    assert type(found) is kind
