"""`d2e doctor`."""

import json
import sys
from collections import Counter
from dataclasses import asdict
from itertools import tee
from pathlib import Path

import click

from d2e_sft.util.files import write_json

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--json", "json_file", metavar="FILE", help="Also write the findings as JSON; `-` prints only the JSON.")
def doctor(*, json_file: str | None) -> None:
    """Check this machine and installation: versions, devices, precisions, attention, launchers, disks, network.

    Each line is ok, warn (only some commands need it) or fail (d2e cannot work), with a remedy. Exits with status 1 if
    one fails. Network checks take two seconds at most; HF_HUB_OFFLINE and WANDB_MODE turn them off.

    \b
    Examples:
      d2e doctor
      d2e doctor --json - | jq '.findings[] | select(.status != "ok")'
    """
    from d2e_sft.doctor.run import findings, lines, summary

    shown, kept = tee(findings())
    for status, text in lines(shown):
        if json_file != "-":
            mark, colour = f"  {status:<5}", _COLOURS.get(status)
            click.echo(text.replace(mark, click.style(mark, fg=colour), 1) if colour else text)
    reported = list(kept)
    rows = [{"topic": finding.topic, **asdict(finding)} for finding in reported]
    content = {"summary": Counter(finding.status for finding in reported), "findings": rows}
    if json_file == "-":
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        click.echo(f"\n{summary(reported)}")
    if json_file not in (None, "-"):
        write_json(Path(str(json_file)), content)
        click.echo(f"wrote {json_file}")
    sys.exit(1 if any(finding.status == "fail" for finding in reported) else 0)
