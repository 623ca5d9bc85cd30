"""`xyreward` and `python -m xyreward`: the command line, and Ctrl-C while it is still being loaded."""

from __future__ import annotations

from xyreward.interrupts import INTERRUPT
from xyreward.streams import forgive_at_exit


def main() -> None:
    """Entry point of the `xyreward` command."""
    INTERRUPT.watch()
    forgive_at_exit()
    try:
        from xyreward.cli import main as command
    except BaseException:
        if INTERRUPT.came:
            INTERRUPT.end()
        raise
    command()


if __name__ == "__main__":
    main()
