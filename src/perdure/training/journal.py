"""What a run tells the outside: metrics, events, ``session.json``. It never stops a training."""

from __future__ import annotations

import math
import os
import shutil
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from perdure.core.clock import Clock
from perdure.core.errors import ConfigError
from perdure.core.events import EventFile
from perdure.core.files import write_json
from perdure.core.paths import RunPaths
from perdure.core.say import warn

_FLUSH_LINES = 500
_FLUSH_S = 5.0


class Journal:
    """Metrics and events of a run.

    Args:
        paths: Files of the run.
        clock: Where "now" comes from.
    """

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        self.metrics: dict[str, float] = {}
        self._paths = paths
        self._clock = clock
        self._file = EventFile(paths.events)
        self._pending: list[dict[str, Any]] = []
        self._flushed_at_s = clock.monotonic()
        self._failed: set[str] = set()

    def carry_over(self, earlier: Path) -> None:
        """Begin with the events of an earlier session, whose folder is another one."""
        if self._paths.events.exists() or not earlier.exists():
            return
        try:
            shutil.copyfile(earlier, self._paths.events)
        except OSError as error:
            self._complain("the events of the earlier session cannot be copied", error)

    def log(self, values: Mapping[str, Any], **where: int) -> None:
        """Note metrics; tensors are copied where they are and read later, so that nothing waits for the GPU.

        Raises:
            ConfigError: A value is not one number.
        """
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if value.numel() != 1:
                    raise ConfigError(
                        f"run.log({name}=...) takes one number, got a tensor of shape {tuple(value.shape)}",
                        hint=f"log its mean: {name}={name}.mean()",
                    )
                kept[name] = value.detach().clone()
            else:
                kept[name] = _number(name, value)
        self._pending.append({"kind": "metrics", **where, "time": self._now(), "values": kept})

    def event(self, event: str, **fields: Any) -> None:
        """Note an event."""
        self._pending.append({"kind": "event", "event": event, "time": self._now(), **fields})

    def flush(self, *, due_only: bool = False) -> None:
        """Write what is pending.

        Args:
            due_only: Only if much or old.
        """
        now = self._clock.monotonic()
        if due_only and len(self._pending) < _FLUSH_LINES and now - self._flushed_at_s < _FLUSH_S:
            return
        lines, self._pending, self._flushed_at_s = self._pending, [], now
        for line in lines:
            values = {name: _read(value) for name, value in line.get("values", {}).items()}
            self.metrics.update(values)
            if "values" in line:
                line["values"] = {k: v if math.isfinite(v) else str(v) for k, v in values.items()}
        try:
            self._file.append(lines)
        except OSError as error:
            self._complain("metrics and events cannot be written", error)

    def status(self, **fields: Any) -> None:
        """Replace ``session.json``."""
        document = {
            "format_version": 1,
            **fields,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "updated": self._now(),
            "metrics": {k: v if math.isfinite(v) else str(v) for k, v in self.metrics.items()},
        }
        try:
            write_json(self._paths.session_json, document)
        except OSError as error:
            self._complain("session.json cannot be written", error)

    def _complain(self, what: str, error: OSError) -> None:
        if what not in self._failed:
            self._failed.add(what)
            warn(f"{what}: {error}; training goes on")

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.time(), UTC).isoformat(timespec="milliseconds")


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"run.log({name}=...) takes a number, got {type(value).__name__}",
            hint="keep other things in run.vars",
        ) from None


def _read(value: Any) -> float:
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)
