"""Training with torch: advantages, losses, batches, the train worker, checkpoints, a tiny model."""
