"""Before a launch: do these machines, links and settings hold what the pool promises, and which of them does not?"""
