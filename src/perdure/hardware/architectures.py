"""Whether a build of a framework has code for a card."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAME = re.compile(r"(sm|compute|lto)_(\d+)(\d)([af]?)")


def has_code_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether one of the architectures of a build runs on a card.

    Machine code (``sm_75``) runs on cards of the same major version with the same or a higher minor one; portable
    code (``compute_75``) is translated by the driver for every later card. Code with an ``a`` runs on just that
    version, with an ``f`` on its family. Source: CUDA C++ Programming Guide, "Application Compatibility" and
    "Family-Specific and Architecture-Specific Features".

    Args:
        capability: Compute capability of the card.
        architectures: As ``torch.cuda.get_arch_list()`` gives them. What is not understood (``gfx90a``) is taken to
            fit: only a kernel can tell.
    """
    return not architectures or any(_runs(capability, each) for each in architectures)


def _runs(capability: tuple[int, int], architecture: str) -> bool:
    match = _NAME.fullmatch(architecture)
    if match is None:
        return True
    kind, built, suffix = match[1], (int(match[2]), int(match[3])), match[4]
    if suffix == "a":
        return built == capability
    if kind == "compute" and suffix != "f":
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]
