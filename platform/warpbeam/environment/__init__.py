"""The environment variables of ranks: what NCCL, gloo, torch and DeepSpeed will make of them, before a launch."""
