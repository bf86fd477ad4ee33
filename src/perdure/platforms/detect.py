"""Which platform is this, what does it allow, and when did the session begin?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from perdure.core.clock import SystemClock
from perdure.core.errors import EXIT_PAUSED, ConfigError
from perdure.core.limits import Limits
from perdure.core.settings import PLATFORM, Settings
from perdure.platforms.place import Place

PLATFORMS = ("local", "kaggle", "colab")

KAGGLE_DISK = "20 GB"
"""What ``/kaggle/working`` may hold, and what is kept as the version's output."""


def detect(environment: Mapping[str, str] | None = None) -> Place:
    """The platform of the present process, with its own limits and folders.

    What the user overrides (``Settings``) is not yet applied, except for the platform itself.

    Args:
        environment: Environment variables; those of this process if None.

    Raises:
        ConfigError: ``PERDURE_PLATFORM`` names none that is known.
    """
    env = os.environ if environment is None else environment
    name = Settings.from_environment(env).platform or _platform(env)
    if name == "kaggle":
        return _kaggle(env)
    if name == "colab":
        return _colab(env)
    if name == "local":
        return Place(
            platform="local",
            mode="process",
            root=Path.cwd() / "runs",
            survives="everything written to disk stays",
            gpu_promised=_gpu_promised(env, hosted=False),
        )
    raise ConfigError(f"{PLATFORM} names no platform: {name!r}", hint=f"one of {', '.join(PLATFORMS)}, or unset it")


def session_started_s(place: Place, settings: Settings) -> float:
    """When the present session began, on the scale of ``SystemClock.monotonic()``.

    On a hosted platform the container is the session, so it began with process 1: what was installed before
    the script counts. A local machine's process 1 says nothing about a session; there it is this process.
    ``PERDURE_SESSION_STARTED`` wins over both.
    """
    if settings.started_s is not None:
        return settings.started_s
    own = process_started_s(os.getpid())
    if place.platform == "local":
        return own
    try:
        container = process_started_s(1)
    except (OSError, psutil.Error):  # process 1 is hidden
        return own
    return container if 0 <= container <= own else own


def process_started_s(pid: int) -> float:
    """When a process was started, on the scale of ``SystemClock.monotonic()``.

    Raises:
        OSError: Its entry in ``/proc`` cannot be read.
        psutil.Error: It cannot be asked, on a system without ``/proc``.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        # proc(5): field 22, counted behind the command's name, which may itself hold spaces and brackets
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    clock = SystemClock()
    return clock.monotonic() - (clock.time() - psutil.Process(pid).create_time())


def _platform(env: Mapping[str, str]) -> str:
    # Kaggle first: its image is built on Colab's and carries some of Colab's variables
    if env.get("KAGGLE_KERNEL_RUN_TYPE") or env.get("KAGGLE_URL_BASE"):
        return "kaggle"
    if env.get("COLAB_RELEASE_TAG") or env.get("COLAB_GPU"):
        return "colab"
    return "local"


def _kaggle(env: Mapping[str, str]) -> Place:
    batch = env.get("KAGGLE_KERNEL_RUN_TYPE", "").lower() == "batch"
    tpu = any(env.get(name) for name in ("ISTPUVM", "TPU_NAME", "TPU_ACCELERATOR_TYPE"))
    working = Path("/kaggle/working")
    survives = (
        f"{working} is kept as this version's output when the session ends"
        if batch
        else f"{working} is lost when this session ends, unless persistence was switched on or a version is saved"
    )
    return Place(
        platform="kaggle",
        mode="batch" if batch else "interactive",
        root=working / "perdure",
        inputs=(Path("/kaggle/input"),),
        limits=Limits(window="9 h" if tpu else "12 h", disk=KAGGLE_DISK, margin="2 min"),
        output=working,
        survives=survives,
        # anything but 0 marks the version as failed, and its output is then no good as an input
        paused_exit_code=0 if batch else EXIT_PAUSED,
        gpu_promised=_gpu_promised(env, hosted=True),
    )


def _colab(env: Mapping[str, str]) -> Place:
    return Place(
        platform="colab",
        mode="interactive",
        root=Path("/content/perdure"),
        limits=Limits(window="12 h"),
        survives="nothing in /content outlives this runtime; a root on the mounted Google Drive does",
        gpu_promised=_gpu_promised(env, hosted=True),
    )


def _gpu_promised(env: Mapping[str, str], *, hosted: bool) -> str:
    """Why a GPU may be expected here, in words; empty if none is.

    On a hosted platform ``nvidia-smi`` comes with the card. On a machine of one's own it may be left over from a
    card that is gone, so there only a device counts (``/dev/dxg`` is the card of a Windows host, under WSL).
    """
    if env.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    cards = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if cards:
        return f"{cards[0]} is there"
    if shutil.which("nvidia-smi", path=env.get("PATH")) and (hosted or Path("/dev/dxg").exists()):
        return "nvidia-smi is installed"
    return ""
