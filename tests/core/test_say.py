"""What the user is told, and what is kept from him for a while."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from perdure.core.say import facts_hidden, say, warn

with facts_hidden():
    say("hidden")
    warn("told")
say("told again")
"""


def test_facts_that_were_hidden_from_the_first_word_on_are_told_again_afterwards():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "perdure: warning: told\nperdure: told again\n")
