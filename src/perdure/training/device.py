"""The device to train on: proved, not believed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from perdure.core.errors import AcceleratorError, ConfigError
from perdure.core.intervals import format_duration
from perdure.hardware.cards import Cards, read_cards
from perdure.hardware.fixes import fix
from perdure.training.session import do_not_wait_at_exit

ACCELERATORS = ("auto", "gpu", "cpu")

FIRST_KERNEL_S = 45.0
"""How long the first kernel may take; setting up CUDA takes up to 20 s on a hosted machine that has just begun."""

CARDS_S = 10.0
"""How long the driver may take to say which cards there are."""


class Trouble(NamedTuple):
    """Why the GPU cannot be used.

    Attributes:
        what: In words.
        code: For ``fix``.
    """

    what: str
    code: str


def check_accelerator(accelerator: str) -> None:
    """Refuse what is no accelerator.

    Raises:
        ConfigError: It is not one of ``"auto"``, ``"gpu"``, ``"cpu"``.
    """
    if accelerator not in ACCELERATORS:
        raise ConfigError(
            f'accelerator must be "auto", "gpu" or "cpu", got {accelerator!r}',
            hint='"gpu" refuses to start without a working one',
        )


def choose_device(
    accelerator: str, promised: str, platform: str = "local", timeout_s: float = FIRST_KERNEL_S
) -> torch.device:
    """The device for a run.

    A GPU counts only once it has run a kernel with the right result: ``is_available()`` is true for cards that
    the build has no code for (Kaggle's P100: github.com/Kaggle/kaggle-cli/issues/1151).

    Args:
        accelerator: What the script asks for.
        promised: Why a GPU is expected here; empty if none is.
        platform: Where this is, for the remedy.
        timeout_s: How long the first kernel may take.

    Raises:
        AcceleratorError: A GPU was asked for or promised and does not work.
    """
    check_accelerator(accelerator)
    if accelerator == "cpu":
        return torch.device("cpu")
    trouble = _trouble(timeout_s)
    if trouble is None:
        return torch.device("cuda", torch.cuda.current_device())
    hung = trouble.code == "hung-kernel"
    if hung:
        do_not_wait_at_exit()
    if accelerator == "gpu" or promised or hung:
        asked = "a GPU was asked for" if accelerator == "gpu" else "a GPU is expected here"
        if trouble.code == "cpu-torch" and not promised:
            trouble = _missing_card() or trouble
        because = f" ({promised})" if promised and accelerator != "gpu" else ""
        raise AcceleratorError(
            f"{asked}{because}, but {trouble.what}",
            hint=f'{fix(trouble.code, platform)}; to train on the CPU, say accelerator="cpu"',
        )
    return torch.device("cpu")


def _trouble(timeout_s: float) -> Trouble | None:
    """Why no card can be used; None if a kernel gave the right result.

    In a thread, because a card in trouble never answers, and nothing can end a thread that waits for it.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        return Trouble(f"this torch ({torch.__version__}) is built for the CPU only", "cpu-torch")
    # which card is current is a matter of the thread; asking would set up CUDA here
    index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    answer: list[Trouble | None] = []
    thread = threading.Thread(target=lambda: answer.append(_try(index)), name="perdure-kernel", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if answer:
        return answer[0]
    waited = format_duration(timeout_s)
    return Trouble(f"the first kernel on card {index} has not come back after {waited}", "hung-kernel")


def _missing_card() -> Trouble | None:
    """What comes before a torch for the CPU: no card. The image of a session without one has such a torch."""
    answer: list[Cards] = []
    thread = threading.Thread(target=lambda: answer.append(read_cards()), name="perdure-cards", daemon=True)
    thread.start()
    thread.join(CARDS_S)
    if not answer or answer[0].trouble_code not in ("no-library", "no-driver", "no-cards"):
        return None
    what = f"{answer[0].trouble}, and this torch ({torch.__version__}) is built for the CPU only"
    return Trouble(what, answer[0].trouble_code)


def _try(index: int) -> Trouble | None:
    """Everything that may hang or fail: the driver, then torch, then a kernel, compared with the CPU."""
    try:
        with _opened_card(index):
            if not torch.cuda.is_available():
                return _no_card()
            x_MK = torch.arange(64.0).reshape(8, 8)
            y_MN = (x_MK.to(f"cuda:{index}") @ x_MK.to(f"cuda:{index}")).cpu()
    except Exception as error:  # noqa: BLE001  torch has many kinds for a card that fails
        return _failed(index, error)
    if torch.allclose(y_MN, x_MK @ x_MK):
        return None
    return Trouble(f"{torch.cuda.get_device_name(index)} computes wrong results", "wrong-results")


def _no_card() -> Trouble:
    """Why torch sees no card."""
    cards = read_cards()
    if cards.trouble:
        return Trouble(f"torch {torch.__version__} sees none: {cards.trouble}", cards.trouble_code)
    names = ", ".join(card.name for card in cards.visible) or "a card"
    return Trouble(f"torch {torch.__version__} does not see {names}, which the driver shows", "framework-blind")


def _failed(index: int, error: Exception) -> Trouble:
    said = str(error).partition("\n")[0]
    try:
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        built = torch.cuda.get_arch_list()
    except Exception:  # noqa: BLE001  not even that
        return Trouble(f"the first kernel failed: {said}", "crashed-kernel")
    arch = "sm_{}{}".format(*capability)
    if "no kernel image" not in said:
        return Trouble(f"the first kernel on {name} ({arch}) failed: {said}", "crashed-kernel")
    return Trouble(f"{name} ({arch}) cannot run a kernel of this torch, built for {built}: {said}", "no-kernels")


@contextmanager
def _opened_card(index: int) -> Iterator[None]:
    """Set the driver up outside of torch, and hold the card's context until torch holds it.

    Torch does both while it holds the interpreter's lock: a driver that never answers would stop every thread,
    and the one that waits with a time-out too. Source: CUDA driver API, ``cuInit`` and
    ``cuDevicePrimaryCtxRetain``; ctypes releases the lock in its calls.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    try:
        driver = None if torch.cuda.is_initialized() else ctypes.CDLL("libcuda.so.1")
    except OSError:  # torch will say what is wrong
        driver = None
    held = (
        driver is not None
        and driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), index) == 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )
    try:
        yield
    finally:
        if driver is not None and held:
            getattr(driver, "cuDevicePrimaryCtxRelease_v2", driver.cuDevicePrimaryCtxRelease)(device)
