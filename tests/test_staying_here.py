"""Nothing in the tests can reach the outside: neither this process nor the children that it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest


def test_a_connection_that_leaves_this_machine_is_refused_before_it_is_made():
    for address in (("192.0.2.1", 443), ("2001:db8::1", 443, 0, 0)):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.socket(family) as one, pytest.raises(AssertionError, match="must not leave this machine"):
            one.connect(address)


def test_a_child_that_speaks_http_finds_no_way_out():
    script = "import requests\ntry:\n    requests.get('https://host.invalid', timeout=5)\nexcept requests.exceptions.ProxyError:\n    print('refused')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert os.environ["https_proxy"].startswith("http://127.0.0.1:")
