"""The run's record in storage: what happened, how fast, and where the time went. Every view derives from it."""
