"""From a plan to a running thing: local Ray, a Ray cluster's job, and what to do when an attempt fails."""
