"""What is pushed: ``kernel-metadata.json`` with every field written out, so that no default of the client decides.

The fields and their rules were read in ``KaggleApi.kernels_push`` (kaggle 2.2.5); nothing was tried against Kaggle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.core.errors import RefusedError, TransientPlatformError
from perdure.platforms.protocol import Accelerator, Submission

CODE_FILE = "session.py"

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DATASET = re.compile(r"[\w-]+/[\w-]+(/\d+)?")
_COMPETITION = re.compile(r"[\w-]+")
_MODEL = re.compile(r"[\w-]+/[\w.-]+/[\w.-]+/[\w.-]+/\d+")


def check_submission(submission: Submission, platform: str) -> None:
    """Refuse what Kaggle or its client would misunderstand, before anything is sent.

    A slug is also the title: Kaggle takes the slug of a new notebook from its title (kaggle-cli issue 847), so the
    two must say the same.

    Raises:
        RefusedError: ``"request"`` or ``"sources"``, with the word that is wrong.
    """
    slug = submission.slug
    if not 6 <= len(slug) <= 50 or not _SLUG.fullmatch(slug):
        raise RefusedError(
            f"{slug!r} cannot be the name of a session on Kaggle",
            code="request",
            hint="6 to 50 of a-z, 0-9 and single dashes inside",
        )
    _all("a data set", submission.datasets, _DATASET, "owner/name")
    _all("a competition", submission.competitions, _COMPETITION, "the last word of its address")
    _all("a model", submission.models, _MODEL, "owner/model/framework/variation/version")
    for handle in submission.sessions:
        if handle.platform != platform:
            raise RefusedError(
                f"{handle.ref} is a session of {handle.platform}, which {platform} cannot see", code="sources"
            )


def kernel_metadata(
    owner: str, submission: Submission, accelerator: Accelerator, datasets: Sequence[str]
) -> dict[str, Any]:
    """The metadata of a session.

    Args:
        owner: Whose account it is.
        submission: What is asked for.
        accelerator: What it is to run on. ``machine_shape`` decides; the two switches that it replaces agree.
        datasets: The data sets, with that of the bundle if there is one.
    """
    return {
        "id": f"{owner}/{submission.slug}",
        "title": submission.slug,
        "code_file": CODE_FILE,
        "language": "python",
        "kernel_type": "script",
        "is_private": True,
        "enable_gpu": accelerator.resource == "gpu",
        "enable_tpu": accelerator.resource == "tpu",
        "enable_internet": submission.internet,
        "machine_shape": accelerator.word,
        "keywords": [],
        "dataset_sources": list(datasets),
        # without a version: whether Kaggle takes one here is not known, and each session has a slug of its own
        "kernel_sources": [handle.ref for handle in submission.sessions],
        "competition_sources": list(submission.competitions),
        "model_sources": list(submission.models),
        "docker_image_pinning_type": "latest",
    }


def write_kernel(folder: Path, metadata: dict[str, Any], source: str) -> None:
    """Lay out what the client pushes.

    Raises:
        TransientPlatformError: There is no room for it here now.
    """
    try:
        (folder / CODE_FILE).write_text(source, encoding="utf-8")
        (folder / "kernel-metadata.json").write_text(json.dumps(metadata, indent=1), encoding="utf-8")
    except OSError as error:
        raise TransientPlatformError(f"cannot write to {folder}: {error.strerror}", hint="make room") from error


def _all(kind: str, names: Sequence[str], pattern: re.Pattern[str], form: str) -> None:
    for name in names:
        if not pattern.fullmatch(name):
            raise RefusedError(f"{name!r} is not the name of {kind}", code="sources", hint=f"it must be {form}")
