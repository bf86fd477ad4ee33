"""NVML by nvidia-ml-py, with every error as a value: nothing here raises because of a driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")
_CLOSED = "NVMLError_Uninitialized"
_NEVER = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission")

_REFUSALS = {
    "NVMLError_LibraryNotFound": ("no-library", "there is no NVIDIA driver here (libnvidia-ml.so.1 is missing)"),
    "NVMLError_DriverNotLoaded": ("no-driver", "the NVIDIA driver is installed, but it does not run"),
    "NVMLError_LibRmVersionMismatch": (
        "version-mismatch",
        "the NVIDIA driver in memory is another version than its libraries (it was updated, and not restarted)",
    ),
    "NVMLError_NoPermission": ("no-permission", "the NVIDIA driver may not be asked by this user"),
}


@dataclass(frozen=True)
class Refusal:
    """NVML cannot be asked.

    Attributes:
        code: For programs; a ``trouble_code`` of ``Cards``.
        sentence: In words.
    """

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What NVML said.

    Attributes:
        value: The value; None if there is none.
        error: Why there is none, in NVML's words; empty if there is one.
        lost: The card has stopped answering.
        never: Asking again is of no use: this card or driver does not tell it.
        closed: NVML was shut down, by another part of this program.
    """

    value: Any = None
    error: str = ""
    lost: bool = False
    never: bool = False
    closed: bool = False


class Nvml:
    """An open NVML. Made by ``open_nvml``."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._pynvml = pynvml

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Call a function of nvidia-ml-py by its name without ``nvml``: ``ask("DeviceGetName", handle)``."""
        try:
            call: Callable[..., Any] = getattr(self._pynvml, "nvml" + function)
            return Answer(call(*arguments))
        except AttributeError:
            return Answer(error=f"this nvidia-ml-py has no nvml{function}", never=True)
        except (self._pynvml.NVMLError, ValueError) as error:  # ValueError: a text that is no UTF-8
            kind = type(error).__name__
            return Answer(None, str(error), kind in _LOST, kind in _NEVER, kind == _CLOSED)

    def close(self) -> None:
        """Give NVML back; it counts its users, so that others in this process are not disturbed."""
        self.ask("Shutdown")


def open_nvml() -> Nvml | Refusal:
    """Open NVML, or say why not."""
    try:
        import pynvml
    except ImportError:
        return Refusal("no-library", "the Python package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code, sentence = _REFUSALS.get(type(error).__name__, ("nvml", f"the NVIDIA driver says: {error}"))
        return Refusal(code, sentence)
    return Nvml(pynvml)
