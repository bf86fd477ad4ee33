"""The manifest: what a checkpoint is, and the proof that it is whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import xxhash
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, computed_field

from perdure.checkpoint.values import decode, encode
from perdure.core.errors import CorruptError, FormatVersionError
from perdure.core.progress import Position

FORMAT_VERSION = 1
"""The newest format that is read, and the one that is written."""

MANIFEST = "manifest.json"

_TENSOR_FILE = r"^tensors/[0-9a-f]{32}\.safetensors$"
_DIGEST = r"^[0-9a-f]{32}$"
_COMPACT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_TAIL = b',\n"digest": "%s"\n}\n'
_TAIL_LENGTH = len(_TAIL % (b"0" * 32))


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """The digest that the format uses: XXH3, 128 bits, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def _as_position(value: Any) -> Position:
    if isinstance(value, Position):
        return value
    if not isinstance(value, dict):
        raise ValueError("not an object")
    known = {f.name: value[f.name] for f in dataclasses.fields(Position) if f.name in value}
    for name, number in known.items():
        if type(number) is not type(getattr(Position, name)) or number < 0:
            raise ValueError(f"{name} is {number!r}")
    return Position(**known)


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Entry(_Record):
    """One named buffer, and where its bytes are.

    Attributes:
        name: Unique within the checkpoint.
        kind: ``"tensor"``, ``"array"`` or ``"bytes"``.
        dtype: safetensors' name of the type.
        shape: Sizes.
        file: The file, relative to the run folder.
        offset: First byte, counted from the start of the file.
        nbytes: Number of bytes.
        digest: Digest of these bytes.
    """

    name: str
    kind: str
    dtype: str
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
    file: Annotated[str, Field(pattern=_TENSOR_FILE)]
    offset: Annotated[int, Field(ge=0)]
    nbytes: Annotated[int, Field(ge=0)]
    digest: Annotated[str, Field(pattern=_DIGEST)]


class Manifest(_Record):
    """Everything about a checkpoint but the bytes of its buffers.

    Attributes:
        run: Name of the run.
        run_id: Its identity, the same over all its sessions.
        seq: Which save of the run it is, counted over all its sessions from 1.
        position: The boundary it was taken at.
        session: Number of the session that saved it, from 1.
        reason: Why it was saved.
        healthy: False if a parameter was NaN or Inf.
        created: When, UTC, ISO 8601. A label: clocks can be wrong.
        training_s: Training time of the run so far, in seconds.
        metrics: Newest value of each logged metric.
        libraries: Versions that wrote it.
        files: Size in bytes of each tensor file that it uses.
        entries: Its buffers.
        values: Its plain values, in the form of ``perdure.checkpoint.values``.
    """

    format_version: int = FORMAT_VERSION
    run: str
    run_id: str
    seq: Annotated[int, Field(ge=1)]
    position: Annotated[Position, BeforeValidator(_as_position)]
    session: int
    reason: str
    healthy: bool
    created: str
    training_s: float
    metrics: dict[str, float]
    libraries: dict[str, str]
    files: dict[Annotated[str, Field(pattern=_TENSOR_FILE)], int]
    entries: Annotated[tuple[Entry, ...], Field(strict=False)]
    values: Any

    @computed_field  # type: ignore[prop-decorator]
    @property
    def step(self) -> int:
        """Finished steps."""
        return self.position.step

    @computed_field  # type: ignore[prop-decorator]
    @property
    def finished(self) -> bool:
        """The run has reached its end."""
        return self.position.finished

    @property
    def key(self) -> tuple[tuple[int, int, int, int, bool], int]:
        """Sort key: a newer checkpoint of the same run is greater."""
        return (self.position.order, self.seq)


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``: JSON, a field a line, the digest of all of it in the last."""
    fields = manifest.model_dump(exclude={"position", "entries", "values", "metrics"})
    fields["position"] = dataclasses.asdict(manifest.position)
    fields["metrics"] = {name: encode(value, lambda *_: None) for name, value in manifest.metrics.items()}
    lines = [f"{json.dumps(name)}: {_json(value)}" for name, value in fields.items()]
    entries = ",\n".join(_json(dict(entry)) for entry in manifest.entries)
    lines += [f'"entries": [\n{entries}\n]' if entries else '"entries": []', f'"values": {_json(manifest.values)}']
    body = ("{\n" + ",\n".join(lines)).encode()
    return body + _TAIL % digest_of(body).encode()


def load_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest in these bytes.

    Args:
        data: Content of the file.
        path: Where it was read, for messages.

    Raises:
        FormatVersionError: A newer Perdure wrote it.
        CorruptError: It is not what was written.
    """
    try:
        fields = json.loads(data)
        version = fields["format_version"]
        if type(version) is not int or version < 1:
            raise ValueError("no format version")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(path, f"it is no manifest ({type(error).__name__})") from None
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{path} is of format version {version}; this Perdure reads up to {FORMAT_VERSION}",
            path=path,
            found=version,
            supported=FORMAT_VERSION,
            hint="install the version of Perdure that wrote it, or a newer one",
        )
    body = data[:-_TAIL_LENGTH]
    if data[-_TAIL_LENGTH:] != _TAIL % digest_of(body).encode():
        raise _corrupt(path, "its digest does not fit its content")
    try:
        fields["metrics"] = {name: decode(value, _no_leaf) for name, value in fields["metrics"].items()}
        return Manifest.model_validate(fields)
    except (ValidationError, KeyError, AttributeError) as error:
        raise _corrupt(path, str(error)) from None


def _json(value: Any) -> str:
    return _COMPACT.encode(value)


def _no_leaf(data: dict[str, Any]) -> Any:
    raise KeyError(str(data)[:80])


def _corrupt(path: Path, problem: str) -> CorruptError:
    return CorruptError(
        f"{path} is not what was written: {problem}", path=path, problems=[f"{MANIFEST}: {problem}"]
    )
