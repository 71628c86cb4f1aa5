"""Faults injected into real runs: processes killed and networks cut, at random and inside the steps of the protocol."""
