"""What one rank measures, under plain torch.distributed: no Ray, so that a launcher may be anything."""
