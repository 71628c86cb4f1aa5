"""Why a launch failed or hangs: evidence becomes facts, rules make findings of them, an order picks the first cause."""
