"""Every failure a person may see: what happened, why, and the next command.

One hierarchy, caught once at the command line's or HTTP edge. The class says who can mend it (`owner`) and which exit
code a script gets. Instances cross Ray and process boundaries, so they pickle with their fields.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Owner = Literal["ml", "platform", "infra", "unknown"]


class WarpbeamError(Exception):
    """Base of all our errors.

    Args:
        what: one sentence, what happened, with the offending value.
        why: the cause, where it is known.
        fix: the next command or the text to write.
        reason: a stable code in snake_case, for scripts and the record.
    """

    exit_code: ClassVar[int] = 3
    owner: ClassVar[Owner] = "unknown"
    default_reason: ClassVar[str] = "error"

    def __init__(self, what: str, *, why: str = "", fix: str = "", reason: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.reason = reason or self.default_reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.why, self.fix, self.reason)

    def __str__(self) -> str:
        return "\n".join(
            line for line in (self.what, self.why and f"why: {self.why}", self.fix and f"fix: {self.fix}") if line
        )

    def to_dict(self) -> dict[str, str]:
        """The same fields as JSON, for `--json` and for the record."""
        return {"what": self.what, "why": self.why, "fix": self.fix, "reason": self.reason, "owner": self.owner}


def _rebuild(cls: type[WarpbeamError], what: str, why: str, fix: str, reason: str) -> WarpbeamError:
    return cls(what, why=why, fix=fix, reason=reason)


class UserError(WarpbeamError):
    """The input is wrong: the job file, the data, the arguments. Nothing was spent."""

    exit_code = 2
    owner: ClassVar[Owner] = "ml"
    default_reason = "bad_input"


class PlatformError(WarpbeamError):
    """What the platform team offers is broken or missing: pool file, image, store, secret."""

    exit_code = 3
    owner: ClassVar[Owner] = "platform"
    default_reason = "platform"


class InfraError(WarpbeamError):
    """A machine, a driver, a disk or the network failed."""

    exit_code = 3
    owner: ClassVar[Owner] = "infra"
    default_reason = "infra"


class DiskFull(InfraError):
    """A disk has no room left. Whoever started the command can free it, so for a script it is input (exit 2)."""

    exit_code = 2
    default_reason: ClassVar[str] = "disk_full"


class RunFailed(WarpbeamError):
    """The training program itself ended badly."""

    exit_code = 1
    owner: ClassVar[Owner] = "ml"
    default_reason = "run_failed"


class UnknownFate(WarpbeamError):
    """How it ended cannot be known from here."""

    exit_code = 4
    default_reason = "unknown"
