"""Things that watch a run: TensorBoard, a loss curve, Prometheus, W&B, MLflow, or the user's own."""
