"""Every error that Perdure raises on purpose.

    PerdureError
    ├── ConfigError (ValueError)             a wrong argument, environment variable or flag
    │   └── PlanChangedError                 the script now asks for another number of epochs or steps
    ├── LoopError (RuntimeError)             the loops of a run are used in a way that cannot be resumed
    ├── StateError                           the state of the training itself
    │   ├── CannotCarryError (TypeError)     something in it has no data-only form
    │   └── StateMismatchError (ValueError)  it does not fit what the checkpoint holds
    ├── DataError                            the data that the run is fed with
    │   ├── LoaderChangedError (ValueError)  its length changed since the checkpoint
    │   └── DataOrderError (RuntimeError)    it deals other samples than before
    ├── CheckpointError                      files on disk
    │   ├── NoCheckpointError (FileNotFoundError)  none there
    │   ├── UnreadableError (OSError)        could not look, or there and not readable
    │   ├── CorruptError (ValueError)        there, but not what was written
    │   ├── FormatVersionError (ValueError)  written by a newer Perdure
    │   ├── UnsafeFileError (ValueError)     a pickle that could run code
    │   ├── DiskFullError (OSError)          no room for the checkpoint; the last good one stays
    │   └── RunLockedError (RuntimeError)    another process is writing to this run
    ├── AcceleratorError (RuntimeError)      a GPU was asked for or promised and does not work
    ├── MissingExtraError (ImportError)      an optional package is not installed
    ├── PlatformError (RuntimeError)         a platform refused or failed
    │   ├── RefusedError                     it said no, and says why; the same call would be refused again
    │   ├── NotThereError (LookupError)      no such session, file or data set, or not for this account
    │   ├── CredentialsError (PermissionError)     no credentials, or they are not accepted
    │   └── TransientPlatformError           the only error that is ever retried
    │       └── UncertainError               no answer came: the call may have been carried out all the same
    └── RelayError (RuntimeError)            a relay cannot do what it was asked to
        ├── BundleError (ValueError)         the project cannot travel as it is
        ├── StaleError                       another process changed the relay since it was read
        └── StoreError (OSError)             the database of relays cannot be read or written

    SessionPaused (SystemExit)               not an error: the run stops here and wants another session

A message says what happened and where; ``hint`` says what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

EXIT_PAUSED = 75
"""Exit code of a paused run: EX_TEMPFAIL of sysexits.h, "try again later"."""


class PerdureError(Exception):
    """Base of all errors of Perdure.

    Args:
        what: One sentence: what happened, and where.
        hint: What to do next; empty if there is nothing to add.
    """

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\nhint: {self.hint}" if self.hint else self.what


class ConfigError(PerdureError, ValueError):
    """A wrong argument, environment variable or flag."""


class PlanChangedError(ConfigError):
    """The script asks for another number of epochs or steps than the run was started with.

    Attributes:
        planned: The number in the checkpoint.
        asked: The number in the script.
    """

    def __init__(self, what: str, *, planned: int, asked: int, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.planned = planned
        self.asked = asked


class LoopError(PerdureError, RuntimeError):
    """The loops of a run are used in a way that cannot be resumed."""


class StateError(PerdureError):
    """The state of the training cannot be saved or restored."""


class CannotCarryError(StateError, TypeError):
    """Something in the state has no data-only form.

    Attributes:
        path: Where it is, for example ``extra.history[3]``.
        type_name: Its type.
    """

    def __init__(self, what: str, *, path: str, type_name: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.path = path
        self.type_name = type_name


class StateMismatchError(StateError, ValueError):
    """The live objects do not fit what the checkpoint holds.

    Attributes:
        differences: One line each.
    """

    def __init__(self, what: str, *, differences: Sequence[str], hint: str = "") -> None:
        lines = "".join(f"\n  - {line}" for line in differences)
        super().__init__(what + lines, hint=hint)
        self.differences = tuple(differences)


class DataError(PerdureError):
    """The data that the run is fed with."""


class LoaderChangedError(DataError, ValueError):
    """A loader has another length than when the checkpoint was made.

    Attributes:
        was: Batches a pass then.
        now: Batches a pass now.
    """

    def __init__(self, what: str, *, was: int, now: int, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.was = was
        self.now = now


class DataOrderError(DataError, RuntimeError):
    """A loader deals other samples than it did before the checkpoint."""


class CheckpointError(PerdureError):
    """Something about checkpoint files.

    Attributes:
        path: The file or folder.
    """

    def __init__(self, what: str, *, path: Path | str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.path = Path(path)


class NoCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint there."""


class UnreadableError(CheckpointError, OSError):
    """It could not be looked at, or it is there and cannot be read."""


class CorruptError(CheckpointError, ValueError):
    """It is there, but it is not what was written.

    Attributes:
        problems: One line each: what is wrong, and in which file.
    """

    def __init__(self, what: str, *, path: Path | str, problems: Sequence[str] = (), hint: str = "") -> None:
        lines = "".join(f"\n  - {line}" for line in problems)
        super().__init__(what + lines, path=path, hint=hint)
        self.problems = tuple(problems)


class FormatVersionError(CheckpointError, ValueError):
    """It was written in a newer format than this Perdure reads.

    Attributes:
        found: The version in the file.
        supported: The newest that is read here.
    """

    def __init__(self, what: str, *, path: Path | str, found: int, supported: int, hint: str = "") -> None:
        super().__init__(what, path=path, hint=hint)
        self.found = found
        self.supported = supported


class UnsafeFileError(CheckpointError, ValueError):
    """It is a pickle that could run code when loaded."""


class DiskFullError(CheckpointError, OSError):
    """There is no room for the checkpoint. The last good one is untouched.

    Attributes:
        needed_bytes: What the checkpoint needs.
        free_bytes: What there is.
    """

    def __init__(self, what: str, *, path: Path | str, needed_bytes: int, free_bytes: int, hint: str = "") -> None:
        super().__init__(what, path=path, hint=hint)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class RunLockedError(CheckpointError, RuntimeError):
    """Another process is writing to this run.

    Attributes:
        pid: Its process id, 0 if unknown.
        host: Its host name.
    """

    def __init__(self, what: str, *, path: Path | str, pid: int, host: str, hint: str = "") -> None:
        super().__init__(what, path=path, hint=hint)
        self.pid = pid
        self.host = host


class AcceleratorError(PerdureError, RuntimeError):
    """A GPU was asked for or promised, and does not work."""


class MissingExtraError(PerdureError, ImportError):
    """An optional package is not installed."""


class PlatformError(PerdureError, RuntimeError):
    """A platform refused or failed."""


class RefusedError(PlatformError):
    """The platform said no. Only another request, or another time, can change the answer.

    Attributes:
        code: Why, in a word: ``"slots-full"``, ``"quota-exhausted"``, ``"quota-projected"`` (sessions that run are
            projected to use up the rest), ``"sources"`` (a data source was not accepted), ``"source-size"``,
            ``"accelerator"``, ``"request"`` (anything else about the request).
    """

    def __init__(self, what: str, *, code: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.code = code


class NotThereError(PlatformError, LookupError):
    """No such thing on the platform, or this account may not see it: hosts give one answer for both."""


class CredentialsError(PlatformError, PermissionError):
    """There are no credentials for the platform, or it does not accept them."""


class TransientPlatformError(PlatformError):
    """It was not carried out, and may work when tried again.

    Attributes:
        retry_after_s: Seconds that the platform asked to wait; None if it did not say.
    """

    def __init__(self, what: str, *, retry_after_s: float | None = None, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.retry_after_s = retry_after_s


class UncertainError(TransientPlatformError):
    """No answer came, or a broken one: the call may have been carried out. Look before it is made again."""


class RelayError(PerdureError, RuntimeError):
    """A relay cannot do what it was asked to."""


class BundleError(RelayError, ValueError):
    """The project cannot travel as it is: something secret in it, nothing to run, too large."""


class StaleError(RelayError):
    """Another process changed the relay since it was read: read it again, and decide again."""


class StoreError(RelayError, OSError):
    """The database of relays cannot be read or written."""


class SessionPaused(SystemExit):
    """The run has saved its state and stops here; it goes on in another session.

    A ``SystemExit``, so that ``finally:`` blocks run and ``except Exception`` does not catch it.

    Attributes:
        reason: Why, for example ``"the window closes at 14:00"``.
        step: Finished steps.
    """

    def __init__(self, reason: str, *, step: int, code: int = EXIT_PAUSED) -> None:
        super().__init__(code)
        self.reason = reason
        self.step = step

    def __str__(self) -> str:
        return f"paused at step {self.step}: {self.reason}"
