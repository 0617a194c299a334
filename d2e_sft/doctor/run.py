"""Run all checks, and report what they found."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from d2e_sft.doctor.finding import Finding
from d2e_sft.util.terminal import filled

# topic → (module, function): imported one by one, so that a broken library is a finding.
_CHECKS = {
    "versions": ("versions", "check_versions"),
    "devices": ("devices", "check_devices"),
    "precision": ("devices", "check_precisions"),
    "attention": ("devices", "check_attentions"),
    "launchers": ("environment", "check_launchers"),
    "storage": ("storage", "check_storage"),
    "network": ("network", "check_network"),
    "environment": ("environment", "check_environment"),
}


def findings() -> Iterator[Finding]:
    """Run all checks and yield their findings, topic by topic."""
    for topic, (module, function) in _CHECKS.items():
        try:
            check = getattr(importlib.import_module(f"d2e_sft.doctor.{module}"), function)
            for finding in check():
                yield replace(finding, topic=topic)
        except Exception as error:  # a broken library may raise anything
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            remedy = "reinstall the package it names, or pip install --force-reinstall d2e-sft"
            yield Finding("check", "fail", f"failed ({reason})", remedy, topic)


def lines(found: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield (status, text) of each line of the report; headings and remedies have the status ""."""
    topic = ""
    for finding in found:
        if finding.topic != topic:
            yield "", f"{'' if not topic else chr(10)}{finding.topic}"
            topic = finding.topic
        yield finding.status, filled(finding.value, lead=f"  {finding.status:<5} {finding.name:<16} ")
        if finding.remedy:
            yield "", filled(finding.remedy, lead="        remedy: ")


def summary(found: Iterable[Finding]) -> str:
    """Return `31 ok, 2 warnings, no failures`."""
    counts: Counter[str] = Counter(finding.status for finding in found)
    named = (("warn", "warning"), ("fail", "failure"))
    words = [f"{counts[status] or 'no'} {name}{'s' * (counts[status] != 1)}" for status, name in named]
    return ", ".join([f"{counts['ok']} ok", *words])
