"""Ways of spreading a model over ranks, behind one small interface (`base.Strategy`)."""
