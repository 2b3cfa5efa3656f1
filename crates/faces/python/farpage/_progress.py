"""A progress bar: on a terminal, in a notebook, or nowhere."""

import sys
import time

_WIDTH = 30
# Shorter waits need no bar.
_QUIET_SECONDS = 0.5


def size_text(count):
    """A number of bytes for people: `1.50 GiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def _notebook():
    """The `display` function of a notebook, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import display

    return display


class _Text:
    """What a notebook shows: plain text."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


class Bar:
    """Shows `done` of `total` bytes while something takes longer than half a second."""

    def __init__(self, label, total):
        self._label, self._total = label, total
        self._began = time.monotonic()
        self._shown = 0
        self._handle = None
        self._display = _notebook()
        self._stream = sys.stderr
        terminal = self._stream is not None and self._stream.isatty()
        self._wanted = self._display is not None or terminal

    def update(self, done):
        seconds = time.monotonic() - self._began
        if not self._wanted or seconds < _QUIET_SECONDS:
            return
        self._show(self._line(min(done, self._total), seconds))

    def _line(self, done, seconds):
        share = done / self._total if self._total else 1.0
        filled = round(share * _WIDTH)
        bar = "█" * filled + "░" * (_WIDTH - filled)
        rate = done / seconds
        left = (self._total - done) / rate if rate else float("inf")
        ends = f"{left:.0f} s left" if left < 1e6 else ""
        return (
            f"{self._label}  {bar} {share:4.0%}  {size_text(done)} of {size_text(self._total)}"
            f"  {size_text(int(rate))}/s  {ends}"
        )

    def _show(self, line):
        if self._display is None:
            self._stream.write("\r" + line.ljust(self._shown))
            self._stream.flush()
        elif self._handle is None:
            self._handle = self._display(_Text(line), display_id=True)
        else:
            self._handle.update(_Text(line))
        self._shown = len(line)

    def close(self):
        if self._shown and self._display is None:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
