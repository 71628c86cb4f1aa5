"""Run log, manifest, save, restore, retention and export: what makes a training state outlive its processes."""
