"""`make attack`: run the attacks, print what came of each, and write the table into docs.

    python -m tests.attack [--only WORD]... [--tries N] [--list] [--no-save]

It ends with status 1 where one of them did harm.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.attack.frame import attacks, run_attack, save


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="attacks with this in name or group"
    )
    parser.add_argument("--tries", type=int, metavar="N", help="attempts of each; default: its own number")
    parser.add_argument("--list", action="store_true", help="name the attacks and run none")
    parser.add_argument("--no-save", action="store_true", help="leave docs as they are")
    given = parser.parse_args()
    chosen = [
        one for one in attacks() if not given.only or any(word in f"{one.group}: {one.name}" for word in given.only)
    ]
    if given.list or not chosen:
        print("\n".join(f"{one.group}: {one.name} ({one.tries})" for one in chosen) or "no such attack")
        return 0 if given.list else 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    harmed = 0
    for attack in chosen:
        outcome = run_attack(attack, given.tries or attack.tries, say=_progress)
        told = (
            f"not tried: {outcome.skipped}" if outcome.skipped else f"{outcome.survived} of {outcome.tried} survived"
        )
        print(f"\r\033[K{attack.group}: {attack.name}: {told} ({outcome.seconds:.0f} s)", flush=True)
        print("".join(f"  {line}\n" for line in outcome.failures), end="", flush=True)
        harmed += outcome.failed
        if not given.no_save:  # at once: a run that is broken off keeps what it has
            save([outcome], "make attack" if given.tries is None else f"make attack TRIES={given.tries}")
    return 1 if harmed else 0


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
