"""What is never a cause: what all ranks print when one of them is gone. It is counted, and named as such."""

from __future__ import annotations

from warpbeam.doctor.facts import Facts
from warpbeam.doctor.signal import HINT, Signal

ENDED = Signal(r"sending process \d+ closing signal|sigterm", HINT)
"""How every run ends, well or not."""
ECHOES: dict[str, Signal] = {
    "watchdog timeouts": Signal(r"watchdog caught collective operation timeout", HINT),
    "ChildFailedError": Signal(r"childfailederror", HINT),
    "unhandled system error": Signal(r"unhandled (system|cuda) error|ncclsystemerror|ncclremoteerror", HINT),
    "connections closed by a peer": Signal(
        r"connection (reset|closed) by (remote )?peer|socket recv.{0,20}failed|broken pipe|remote process exited", HINT
    ),
    "rendezvous timeouts": Signal(r"rendezvoustimeouterror", HINT),
    "ds_opt_adam": Signal(r"has no attribute 'ds_opt_adam'", HINT),
    "processes ended by their launcher": ENDED,
    "flushed work requests": Signal(r"vendor err(or)? 249|wr_flush_err", HINT),
}


def heard(facts: Facts) -> list[str]:
    """In words, which of them were seen, and on how many ranks."""
    told = []
    for name, signal in ECHOES.items():
        if facts.has(signal):
            ranks = len(facts.ranks_of(signal))
            who = f"{ranks} ranks" if ranks > 1 else f"{facts.count(signal)} lines"
            told.append(f"{who}: {name}")
    return told
