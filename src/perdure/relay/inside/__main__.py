"""The relay's part of a hosted session: ``python -m perdure.relay.inside ORDER.json``, in the working folder.

Only the standard library until what Perdure needs is known to be there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from perdure.relay.inside.needs import provide


def main() -> int:
    """Run the session that an order names; returns its exit code."""
    path = Path(sys.argv[1]).absolute()
    trouble = provide(path)
    if trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    from perdure.relay.inside.work import work

    return work(path)


if __name__ == "__main__":
    sys.exit(main())
