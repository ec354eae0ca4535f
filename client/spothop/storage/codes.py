"""What the error codes of S3, Google Cloud Storage and Azure Blob Storage mean for us.

The rule: **a refusal is transient unless it is known to be final.** Providers send 400, 403, 404
and 409 for things that pass within seconds (a slow upload, a clock that is off until it is set, a
token that is about to be renewed, an upload that a server lost, a conflict), and a save that was
accepted must not be lost for them. So the status alone decides nothing; the provider's own code
does, and a code that is in no table here is worth another try. MinIO, R2, Ceph and others speak
S3's codes.

Sources, read in November 2026:
S3     docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
GCS    cloud.google.com/storage/docs/json_api/v1/status-codes and .../xml-api/reference-status
Azure  learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
       and .../common-rest-api-error-codes
"""

from __future__ import annotations

import re
from enum import Enum

_STATUS = re.compile(r"status code: (\d{3})")
_XML = re.compile(r"<Code>\s*([A-Za-z0-9_.-]+)\s*</Code>")
_BODY = re.compile(r"status code: \d{3}[^:\n]*:(.*?)(?:\n\s*Debug source:|\Z)", re.DOTALL)
_JSON = re.compile(r'"reason":\s*"([A-Za-z0-9_.-]+)"')


class Meaning(str, Enum):
    TRANSIENT = "transient"
    """Try again."""
    DENIED = "denied"
    """These credentials may not do it."""
    UNUSABLE = "unusable"
    """The URL or its options name nothing usable, such as a bucket that does not exist."""
    EXISTS = "exists"
    """A conditional create lost."""
    MISSING = "missing"
    """No such object."""
    UNSUPPORTED = "unsupported"
    """The store cannot do this."""


_S3 = {
    "AccessDenied": Meaning.DENIED,
    "AccountProblem": Meaning.DENIED,
    "AllAccessDisabled": Meaning.DENIED,
    "InvalidAccessKeyId": Meaning.DENIED,
    "InvalidSecurity": Meaning.DENIED,
    "InvalidToken": Meaning.DENIED,
    "NotSignedUp": Meaning.DENIED,
    "SignatureDoesNotMatch": Meaning.DENIED,
    "KMS.DisabledException": Meaning.DENIED,
    "AuthorizationHeaderMalformed": Meaning.UNUSABLE,  # another region's bucket
    "IllegalLocationConstraintException": Meaning.UNUSABLE,
    "InvalidBucketName": Meaning.UNUSABLE,
    "KeyTooLongError": Meaning.UNUSABLE,
    "NoSuchBucket": Meaning.UNUSABLE,
    "PermanentRedirect": Meaning.UNUSABLE,
    "EntityTooLarge": Meaning.UNUSABLE,
    "NoSuchKey": Meaning.MISSING,
    "NoSuchVersion": Meaning.MISSING,
    "PreconditionFailed": Meaning.EXISTS,
    "MethodNotAllowed": Meaning.UNSUPPORTED,
    "NotImplemented": Meaning.UNSUPPORTED,
}
_GCS = {
    "forbidden": Meaning.DENIED,
    "accountDisabled": Meaning.DENIED,
    "insufficientPermissions": Meaning.DENIED,
    "required": Meaning.DENIED,  # of a login
    "UserProjectAccountProblem": Meaning.DENIED,
    "UserProjectInvalid": Meaning.DENIED,
    "UserProjectMissing": Meaning.DENIED,  # of a bucket whose reader pays
    "conditionNotMet": Meaning.EXISTS,
    "invalidArgument": Meaning.UNUSABLE,
}
_AZURE = {
    "AccountIsDisabled": Meaning.DENIED,
    "AuthorizationFailure": Meaning.DENIED,
    "AuthorizationPermissionMismatch": Meaning.DENIED,
    "AuthorizationProtocolMismatch": Meaning.DENIED,
    "AuthorizationResourceTypeMismatch": Meaning.DENIED,
    "AuthorizationServiceMismatch": Meaning.DENIED,
    "AuthorizationSourceIPMismatch": Meaning.DENIED,
    "InsufficientAccountPermissions": Meaning.DENIED,
    "InvalidAuthenticationInfo": Meaning.DENIED,
    "KeyBasedAuthenticationNotPermitted": Meaning.DENIED,
    "NoAuthenticationInformation": Meaning.DENIED,
    "PublicAccessNotPermitted": Meaning.DENIED,
    "AccountRequiresHttps": Meaning.UNUSABLE,
    "ContainerDisabled": Meaning.UNUSABLE,
    "ContainerNotFound": Meaning.UNUSABLE,
    "InvalidResourceName": Meaning.UNUSABLE,
    "ResourceNotFound": Meaning.UNUSABLE,
    "BlobNotFound": Meaning.MISSING,
    "BlobAlreadyExists": Meaning.EXISTS,
    "ConditionNotMet": Meaning.EXISTS,
    "TargetConditionNotMet": Meaning.EXISTS,
    "UnsupportedHttpVerb": Meaning.UNSUPPORTED,
}
# Of the same spelling and not in the tables, so transient: RequestTimeout, RequestTimeTooSkewed,
# ExpiredToken, SlowDown, OperationAborted, ConditionalRequestConflict, NoSuchUpload, InvalidPart,
# BadDigest, IncompleteBody, AuthenticationFailed (Azure answers so to a clock that is off, and to a
# token that has just expired), ServerBusy, OperationTimedOut, InternalError, InvalidBlockList and
# InvalidBlobOrBlock (blocks that Azure has dropped, or another writer's: sent anew they fit),
# rateLimitExceeded, backendError.
KNOWN = {**_S3, **_GCS, **_AZURE}

_ROLE = (
    "give the identity the role `Storage Blob Data Contributor` on the container; a new role takes"
    " some minutes to work"
)
HINTS = {
    "AuthorizationFailure": "let the network rules of the storage account admit this machine",
    "AuthorizationPermissionMismatch": _ROLE,
    "InsufficientAccountPermissions": _ROLE,
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys: leave account_key out, and "
    + _ROLE,
    "AuthenticationFailed": "where this stays: is the clock right, has the signature (sas_key)"
    " expired, and is the account_key the account's?",
    "ContainerNotFound": "create it (az storage container create), or correct the URL",
    "ContainerDisabled": "ask who disabled it, or use another container",
    "ContainerBeingDeleted": "somebody deletes the container: use another one",
    "AccountRequiresHttps": "write https:// in the option endpoint",
}
"""What to do about it, where a provider's code tells more than the kind of the error."""


def status_of(text: str) -> int | None:
    """The HTTP status in an error message of obstore; None when no server answered."""
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


def code_of(text: str) -> str | None:
    """The provider's own code in the answer's body, which obstore's message quotes."""
    found = _XML.search(text) or _JSON.search(text)
    return found.group(1) if found else None


def has_body(text: str) -> bool:
    """Whether the server said more than its status; the answer to HEAD never does."""
    found = _BODY.search(text)
    return found is not None and bool(found.group(1).strip())


def meaning(
    status: int, code: str | None, *, creating: bool = False, body: bool = False
) -> Meaning:
    """What the answer of a server means.

    An answer to HEAD has no body and so no code; 404 then means the object. A 404 with a `body`
    and no code comes from something in between, such as a proxy, and says nothing of the object.
    409 without a code is how some stores refuse a conditional create (`creating`), and a conflict
    otherwise.
    """
    if code is not None and code in KNOWN:
        return KNOWN[code]
    if status == 412:
        return Meaning.EXISTS
    if code is not None:
        return Meaning.MISSING if status == 404 and code == "notFound" else Meaning.TRANSIENT
    if status == 404:
        return Meaning.TRANSIENT if body else Meaning.MISSING
    if status == 409 and creating:
        return Meaning.EXISTS
    if status in (401, 403):
        return Meaning.DENIED
    if status in (405, 501):
        return Meaning.UNSUPPORTED
    return Meaning.TRANSIENT
