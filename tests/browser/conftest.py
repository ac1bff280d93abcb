"""One browser for all tests, and pages with what a test looks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.driver import Browser, find_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    found = Browser(program)
    yield found
    found.close()
