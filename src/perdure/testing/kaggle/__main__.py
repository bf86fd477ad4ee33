"""``python -m perdure.testing.kaggle --folder F``: the emulator as a process of its own.

It writes ``F/emulator.json`` when it listens (address, environment for clients, window, pace) and goes on until it
is interrupted or terminated. Its sessions go on without it, and it finds them when it is started there again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path

from perdure.core.errors import PerdureError
from perdure.testing.kaggle.emulator import Emulator
from perdure.testing.kaggle.rules import Rules, read_rules


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal."""
    asked = _parser().parse_args(arguments)
    folder = Path(asked.folder)
    rules = read_rules(folder / "rules.json")
    given = {name: getattr(asked, name) for name in _numbers() if getattr(asked, name) is not None}
    given |= {"pace": {**rules.pace, **json.loads(asked.pace)}} if asked.pace else {}
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    try:
        with Emulator(folder, replace(rules, **given), port=asked.port, keep_running=True) as emulator:
            print(f"emulated Kaggle at {emulator.url}, in {emulator.folder}", flush=True)
            end.wait()
    except PerdureError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.kaggle", description=__doc__)
    parser.add_argument("--folder", required=True, help="where everything is kept")
    parser.add_argument("--port", type=int, default=0, help="0: the last one, or any that is free")
    parser.add_argument("--pace", default="", help="fields of the pace as JSON")
    for name, kind in _numbers().items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, type=kind, help="see perdure.testing.kaggle.rules"
        )
    return parser


def _numbers() -> dict[str, type]:
    """Rules that are numbers or words."""
    kinds = {"float": float, "int": int, "str": str}
    return {each.name: kinds[str(each.type)] for each in fields(Rules) if str(each.type) in kinds}


if __name__ == "__main__":
    sys.exit(main())
