"""The phases that need more than one order: who is asked at the same time, and when it is enough."""
