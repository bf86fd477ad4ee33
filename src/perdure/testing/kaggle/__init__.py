"""Kaggle on this machine: an HTTP server that speaks its protocol to the unmodified official client."""

from perdure.testing.kaggle.emulator import Emulator, Seen
from perdure.testing.kaggle.rules import Rules
from perdure.testing.kaggle.switches import Fault, Switches

__all__ = ["Emulator", "Fault", "Rules", "Seen", "Switches"]
